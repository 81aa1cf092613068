"""Tests of observations on disk: none is torn or silently lost, whichever process is killed when."""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import CanaryError
from pipelines.router import observation_log
from pipelines.router.observation import Divergence, Observation
from pipelines.router.observation_log import ObservationLog, append, log_end, read_observations

PLAIN = Observation(
    canary_id="c1", request_id="r", arm="stable", arrived_at_s=1000.5, oldest_open_at_s=1000.25, band="low"
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


def write(path: Path, *numbers: int) -> ObservationLog:
    log = ObservationLog(path)
    for number in numbers:
        log.put(numbered(number))
    log.close()
    return log


@pytest.mark.parametrize("observation", [PLAIN, FULL])
def test_an_observation_comes_back_whole(observation: Observation) -> None:
    assert Observation.of_json(observation.to_json()) == observation


def test_a_lone_surrogate_of_a_client_does_not_make_the_log_unreadable() -> None:
    content = dataclasses.replace(PLAIN, session_id="s\udcff").to_json()
    assert Observation.of_json(content).session_id == "s?"


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(PLAIN.to_json()), **changes}).encode()


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"{}", "is missing; the keys are"),
        (b"\xff", "the document"),
        (changed(arm="canary"), "arm='canary'"),
        (changed(ttft_s="fast"), "ttft_s='fast'"),
        (changed(is_replay=1), "is_replay=1"),
        (changed(accepted_per_round=[1, True]), "accepted_per_round[1]=True"),
        (changed(divergence={"prompt": ""}), "divergence.expected_of"),
        (changed(draft_lenght=3), "draft_lenght"),
    ],
)
def test_what_another_version_wrote_is_refused_with_its_place(
    tmp_path: Path, content: bytes, seen: str
) -> None:
    path = tmp_path / "log"
    write(path, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO observation (content) VALUES (?)", (content,))
    with pytest.raises(CanaryError) as caught:
        read_observations(path, 0)
    assert str(path) in caught.value.message and seen in caught.value.message and caught.value.remedy


def test_what_clients_asked_is_the_servers_own_to_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch(0o644)
    write(path, 1)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reader_goes_on_at_its_offset_and_what_it_has_stored_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log"
    assert read_observations(path, 0) == ([], 0)
    write(path, 1, 2)
    found, offset = read_observations(path, 0)
    assert ids(found) == ["r1", "r2"]
    assert read_observations(path, 0) == (found, offset), "a reader that was killed before it stored them"
    assert read_observations(path, offset) == ([], offset)
    write(path, 3)
    assert log_end(path) == offset + 1
    assert ids(read_observations(path, 0)[0]) == ["r3"], "those before were deleted"


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_log_that_is_shorter_than_what_was_read_is_another_log(tmp_path: Path, is_empty: bool) -> None:
    if not is_empty:
        write(tmp_path / "log", 1)
    with pytest.raises(CanaryError, match="up to number 2 were read"):
        read_observations(tmp_path / "log", 2)


def test_a_file_of_another_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("no database" * 100)
    with pytest.raises(CanaryError, match="cannot be read"):
        read_observations(path, 0)
    with pytest.raises(CanaryError, match="cannot be read"):
        log_end(path)


def test_observing_never_blocks_and_dropped_observations_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, [])
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    log = ObservationLog(path, max_queue=3)
    for number in range(11):
        log.put(numbered(number))
        while number == 0 and not log._queue.empty():
            time.sleep(0.01)
    assert log.num_dropped == 7
    lock.close()
    log.close()
    assert ids(read_observations(path, 0)[0]) == ["r0", "r1", "r2", "r3"]


def test_a_full_log_loses_what_it_has_no_room_for_until_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation_log, "_MOST_PAGES", 6)
    path = tmp_path / "log"
    log = write(path, *range(100))
    assert 0 < log.num_dropped < 100
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
    found, offset = read_observations(path, 0)
    assert ids(found) == [f"r{number}" for number in range(100 - log.num_dropped)]
    read_observations(path, offset)
    assert write(path, 100).num_dropped == 0


def test_an_observation_with_a_defect_is_lost_alone(tmp_path: Path) -> None:
    log = ObservationLog(tmp_path / "log")
    for number in (1, 2, 3):
        log.put(dataclasses.replace(numbered(number), ttft_s=float("nan") if number == 2 else 0.1))
    log.close()
    assert ids(read_observations(tmp_path / "log", 0)[0]) == ["r1", "r3"]
    assert log.num_dropped == 1


def test_a_folder_that_cannot_be_made_costs_observations_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert write(tmp_path / "file" / "log", 1).num_dropped == 1


def _write_for_ever(path: Path) -> None:
    log = ObservationLog(path)
    number = 0
    while True:
        log.put(numbered(number))
        number += 1
        time.sleep(0.0002)


def test_a_reader_beside_writers_that_are_killed_sees_each_observation_once(tmp_path: Path) -> None:
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
        more, offset = read_observations(path, offset)
        assert ids(found + more) == [f"r{number}" for number in range(len(found + more))]
        assert len(found) >= 200
