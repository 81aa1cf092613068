"""Tests of observations on disk: no line is torn or silently lost, whichever process is killed when."""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import CanaryError
from pipelines.router import observation_log
from pipelines.router.observation import Divergence, Observation
from pipelines.router.observation_log import ObservationLog, log_end, read_observations

PLAIN = Observation(
    canary_id="c1",
    request_id="r",
    arm="stable",
    arrived_at_s=1000.5,
    oldest_open_at_s=1000.25,
    band="low",
)
FULL = dataclasses.replace(
    PLAIN,
    arm="candidate",
    overridden=True,
    fallback_from=("control", "stable"),
    fallback_reasons=("error", "timeout"),
    is_replay=True,
    failure="timeout",
    ttft_s=0.125,
    e2e_latency_s=1.0,
    longest_pause_s=0.5,
    num_output_tokens=5,
    drafted_per_round=(3, 3),
    accepted_per_round=(2, 1),
    prompt_id="p",
    session_id="s1",
    answer="diverged",
    differs_in="tokens",
    num_common_tokens=4,
    divergence=Divergence("Wie? \u2028\n\x85", "own_target", "tokens", "so\n", "anders", 4, "a", "b"),
)


def numbered(number: int) -> Observation:
    return dataclasses.replace(PLAIN, request_id=f"r{number}")


def ids(observations: list[Observation]) -> list[str]:
    return [each.request_id for each in observations]


def write(path: Path, *numbers: int, **options: int) -> None:
    log = ObservationLog(path, **options)
    for number in numbers:
        log.put(numbered(number))
    log.close()
    assert log.num_dropped == 0


def read_all(path: Path, offset: int = 0) -> tuple[list[Observation], int]:
    found: list[Observation] = []
    while True:
        more, following = read_observations(path, offset)
        if following == offset:
            return found, offset
        found, offset = found + more, following


@pytest.mark.parametrize("observation", [PLAIN, FULL])
def test_an_observation_is_one_line_and_comes_back_whole(observation: Observation) -> None:
    line = observation.to_line()
    assert line.endswith(b"\n") and len(line.splitlines()) == 1
    assert Observation.from_line(line) == observation


def test_a_lone_surrogate_of_a_client_does_not_make_the_log_unreadable() -> None:
    line = dataclasses.replace(PLAIN, session_id="s\udcff").to_line()
    assert Observation.from_line(line).session_id == "s?"


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(PLAIN.to_line()), **changes}).encode()


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (changed(format=3), '"format": 3'),
        (b"{}", "{}"),
        (b"[1]", "[1]"),
        (b"\xff", "\\xff"),
        (PLAIN.to_line()[:40], "canary_id"),
        (changed(arm="canary"), "arm='canary'"),
        (changed(band=""), "band=''"),
        (changed(ttft_s="fast"), "ttft_s='fast'"),
        (changed(is_replay=1), "is_replay=1"),
        (changed(accepted_per_round=[1, True]), "accepted_per_round[1]=True"),
        (changed(fallback_from="stable"), "fallback_from='stable'"),
        (changed(divergence={"prompt": ""}), "divergence.expected_of"),
        (changed(draft_lenght=3), "draft_lenght"),
    ],
)
def test_a_line_of_another_kind_is_refused_with_its_place(tmp_path: Path, line: bytes, seen: str) -> None:
    path = tmp_path / "log"
    write(path, 1)
    segment = path.with_name("log.000000000000000")
    segment.write_bytes(segment.read_bytes() + line + b"\n")
    with pytest.raises(CanaryError) as caught:
        read_observations(path, 0)
    error = caught.value
    assert str(segment) in error.message and seen in error.message and error.remedy


def test_what_clients_asked_is_the_servers_own_to_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    before = path.with_name("log.000000000000000")
    before.touch(0o644)
    write(path, *range(4), max_segment_bytes=1)
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) > 1


def test_a_reader_resumes_at_its_offset_and_waits_for_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log"
    assert read_observations(path, 0) == ([], 0)
    write(path, 1, 2)
    found, offset = read_observations(path, 0)
    assert ids(found) == ["r1", "r2"]
    assert read_observations(path, offset) == ([], offset)
    segment = path.with_name("log.000000000000000")
    line = numbered(3).to_line()
    for cut in (1, len(line) // 2, len(line) - 1):
        segment.write_bytes(segment.read_bytes()[:offset] + line[:cut])
        assert read_observations(path, offset) == ([], offset)
        assert log_end(path) == offset
    write(path, 4)  # the process that tore the line is gone; its successor removes the rest of the line
    assert ids(read_observations(path, offset)[0]) == ["r4"]


def test_a_torn_line_longer_than_a_block_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation_log, "_BLOCK_BYTES", 7)
    path = tmp_path / "log"
    path.with_name("log.000000000000000").write_bytes(PLAIN.to_line()[:-1])
    write(path, 1, 2)
    with path.with_name("log.000000000000000").open("ab") as file:
        file.write(PLAIN.to_line()[:-1])
    write(path, 3)
    assert ids(read_all(path)[0]) == ["r1", "r2", "r3"]


def test_segments_follow_each_other_and_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "log"
    size = len(numbered(10).to_line())
    write(path, *range(10, 15), max_segment_bytes=2 * size, max_segments=9)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        f"log.{begin:015}" for begin in (0, 2 * size, 4 * size)
    ]
    found, offset = read_all(path)
    assert ids(found) == [f"r{number}" for number in range(10, 15)]
    assert offset == log_end(path) == 5 * size
    write(path, *range(15, 20), max_segment_bytes=2 * size, max_segments=2)
    assert ids(read_all(path, 8 * size)[0]) == ["r18", "r19"]
    assert ids(read_all(path)[0]) == ["r18", "r19"]  # a reader that begins now
    with pytest.raises(CanaryError, match="deleted before they were read") as caught:
        read_observations(path, offset)
    assert str(offset) in caught.value.message and caught.value.remedy


def test_a_log_that_is_shorter_than_what_was_read_is_another_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, 1)
    with pytest.raises(CanaryError, match="deleted before they were read"):
        read_observations(path, log_end(path) + 1)
    with pytest.raises(CanaryError, match="deleted before they were read"):
        read_observations(tmp_path / "other", 1)


def test_observing_never_blocks_and_dropped_observations_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_answers = threading.Event()
    is_writing = threading.Event()
    really = observation_log._write

    def slow(*args: Any) -> None:
        is_writing.set()
        assert disk_answers.wait(120)
        really(*args)

    monkeypatch.setattr(observation_log, "_write", slow)
    log = ObservationLog(tmp_path / "log", max_queue=3)
    log.put(numbered(0))
    assert is_writing.wait(120)
    for number in range(1, 11):
        log.put(numbered(number))
    assert log.num_dropped == 7
    disk_answers.set()
    log.close()
    assert ids(read_all(tmp_path / "log")[0]) == ["r0", "r1", "r2", "r3"]


def test_a_full_disk_loses_what_it_has_no_room_for_and_no_line_is_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    really = observation_log._write

    def write_some(file: Any, line: bytes) -> None:
        if b'"r2"' in line or b'"r3"' in line:
            file.write(line[:30])
            raise OSError(28, "No space left on device")
        really(file, line)

    monkeypatch.setattr(observation_log, "_write", write_some)
    log = ObservationLog(tmp_path / "log")
    for number in range(1, 6):
        log.put(numbered(number))
    log.close()
    assert ids(read_all(tmp_path / "log")[0]) == ["r1", "r4", "r5"]
    assert log.num_dropped == 2
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1


def test_an_observation_with_a_defect_is_lost_alone(tmp_path: Path) -> None:
    log = ObservationLog(tmp_path / "log")
    for number in (1, 2, 3):
        log.put(dataclasses.replace(numbered(number), ttft_s=float("nan") if number == 2 else 0.1))
    log.close()
    assert ids(read_all(tmp_path / "log")[0]) == ["r1", "r3"]
    assert log.num_dropped == 1


def test_a_folder_that_cannot_be_made_costs_observations_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = ObservationLog(tmp_path / "file" / "log")
    log.put(PLAIN)
    log.close()
    assert log.num_dropped == 1


def _write_for_ever(path: Path) -> None:
    log = ObservationLog(path, max_segment_bytes=20_000, max_segments=1000)
    number = 0
    while True:
        log.put(numbered(number))
        number += 1
        time.sleep(0.0002)


def test_a_reader_beside_writers_that_are_killed_sees_whole_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    offset = 0
    for _ in range(2):
        writer = context.Process(target=_write_for_ever, args=(path,), daemon=True)
        writer.start()
        found: list[Observation] = []
        deadline_s = time.monotonic() + 120
        while len(found) < 200 and time.monotonic() < deadline_s:
            more, offset = read_observations(path, offset)
            found += more
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        more, offset = read_all(path, offset)
        assert ids(found + more) == [f"r{number}" for number in range(len(found + more))]
        assert len(found) >= 200


def test_two_writers_append_whole_lines_to_the_same_segments(tmp_path: Path) -> None:
    path = tmp_path / "log"
    size = len(numbered(100).to_line())
    logs = [ObservationLog(path, max_segment_bytes=5 * size, max_segments=1000) for _ in range(2)]
    for number in range(100, 300):
        logs[number % 2].put(numbered(number))
    for log in logs:
        log.close()
    found = ids(read_all(path)[0])
    assert sorted(found) == [f"r{number}" for number in range(100, 300)]
    for first in (0, 1):
        assert [each for each in found if int(each[1:]) % 2 == first] == sorted(
            each for each in found if int(each[1:]) % 2 == first
        )
    assert len(list(tmp_path.iterdir())) > 30
