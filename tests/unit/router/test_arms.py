"""Tests of the table of arms: what it refuses, what a lease means, and how the router follows it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import CanaryError
from pipelines.router.arms import ArmTable, Bands, LiveArms, ShadowSetting, read_table, write_table

TABLE = ArmTable(
    generation=7,
    canary_id="c1",
    salt="pepper",
    stable="/run/stable.sock",
    candidate="/run/candidate.sock",
    candidate_weight=0.2,
    shadow=ShadowSetting(share=0.5, max_per_s=4.0, max_in_flight=2, max_queue=16),
    replays_match="own_target",
    bands=Bands(medium_from=4, high_from=8),
    lease_until_s=1000.0,
    slow_after_s=2.0,
)
ALONE = ArmTable.without_rollout("/run/stable.sock", Bands(medium_from=4, high_from=8), 2.0)


@pytest.mark.parametrize("table", [TABLE, ALONE])
def test_a_table_comes_back_as_it_was_written(tmp_path: Path, table: ArmTable) -> None:
    path = tmp_path / "arms.json"
    write_table(path, table)
    assert read_table(path) == table
    assert json.loads(path.read_text())["format"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["arms.json"]


def test_after_the_lease_the_stable_pair_has_the_candidates_share_and_nothing_is_repeated() -> None:
    assert TABLE.weights(999.9) == {"stable": 0.8, "candidate": 0.2}
    assert TABLE.shadow_at(999.9) == TABLE.shadow
    for now_s in (1000.0, 1e9):
        assert TABLE.weights(now_s) == {"stable": 1.0, "candidate": 0.0}
        assert TABLE.shadow_at(now_s) is None
    assert ALONE.weights(5.0) == {"stable": 1.0}  # it needs no lease


def document(**changes: Any) -> dict[str, Any]:
    known = dataclasses.asdict(TABLE)
    del known["control"]
    return {"format": 2, **known, **changes}


def refused(tmp_path: Path, written: object) -> CanaryError:
    path = tmp_path / "arms.json"
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    with pytest.raises(CanaryError) as caught:
        read_table(path)
    error = caught.value
    assert str(path) in error.message and error.remedy
    return error


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"format": 1}, "format=1"),
        ({"generation": -1}, "generation=-1"),
        ({"candidat": None}, "candidat"),
        ({"candidate_weight": -0.2}, "candidate_weight=-0.2"),
        ({"candidate_weight": 1.1}, "candidate_weight=1.1"),
        ({"candidate": "", "shadow": None}, "need a candidate"),
        ({"candidate": "/run/stable.sock"}, "/run/stable.sock"),
        ({"stable": ""}, "0 bytes"),
        ({"candidate": "/" + "x" * 107}, "108 bytes"),
        ({"control": "/run/control.sock"}, "control"),
        ({"bands": {"medium_from": 8, "high_from": 8}}, "high_from=8"),
        ({"bands": {"medium_from": 0, "high_from": 8}}, "medium_from=0"),
        ({"shadow": {"share": 1.1, "max_per_s": 1, "max_in_flight": 1, "max_queue": 1}}, "share=1.1"),
        ({"shadow": {"share": 1, "max_per_s": 1, "max_in_flight": 0, "max_queue": 1}}, "max_in_flight=0"),
        ({"shadow": {"share": 1, "max_per_s": 0, "max_in_flight": 1, "max_queue": 1}}, "max_per_s=0"),
        ({"slow_after_s": 0}, "slow_after_s=0"),
        ({"replays_match": "control"}, "replays_match='control'"),
    ],
)
def test_what_no_router_could_follow_is_refused(tmp_path: Path, changes: dict[str, Any], seen: str) -> None:
    assert seen in refused(tmp_path, document(**changes)).message


NESTED = "[" * 900 + "]" * 900  # read, but perhaps no longer written


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", "null", "[" * 100_000, '{"format": 2}', NESTED, f'{{"format": {NESTED}}}']
)
def test_a_file_that_holds_no_table_is_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


def test_the_routers_own_control_belongs_to_every_table(tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    write_table(path, TABLE)
    live = LiveArms(path, dataclasses.replace(ALONE, control="/run/control.sock"))
    assert live.read() == dataclasses.replace(TABLE, control="/run/control.sock")
    assert list(live.read().sockets) == ["stable", "candidate", "control"]


def test_the_router_follows_the_file_from_its_coming_to_its_going(tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    live = LiveArms(path, ALONE)
    assert live.read() == ALONE
    write_table(path, TABLE)
    assert live.read() == TABLE
    assert LiveArms(path, ALONE).read() == TABLE  # a restart
    path.unlink()
    assert live.read() == ALONE


def test_two_tables_of_one_length_in_one_tick_of_the_clock_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    live = LiveArms(path, ALONE)
    for generation in range(10, 90):
        write_table(path, dataclasses.replace(TABLE, generation=generation))
        os.utime(path, (1000, 1000))
        assert live.read().generation == generation


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"format": 3})])
def test_a_bad_file_is_named_once_and_the_last_good_table_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "arms.json"
    write_table(path, TABLE)
    live = LiveArms(path, ALONE)
    assert live.read() == TABLE
    path.write_text(text)
    caplog.clear()
    for _ in range(3):
        assert live.read() == TABLE
    assert len(caplog.records) == 1
    assert "stays in use" in caplog.text and str(path) in caplog.text


def test_a_router_that_starts_with_a_bad_file_sends_everything_to_the_stable_pair(tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    path.write_text("{")
    assert LiveArms(path, ALONE).read() == ALONE


def test_a_slow_reader_on_another_thread_does_not_bring_back_an_older_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "arms.json"
    older, newer = (dataclasses.replace(TABLE, generation=generation) for generation in (7, 8))
    write_table(path, older)
    live = LiveArms(path, ALONE)
    has_parsed, may_go_on = threading.Event(), threading.Event()

    def read_slowly(path: Path) -> ArmTable:
        table = read_table(path)
        if table == older:
            has_parsed.set()
            assert may_go_on.wait(120)
        return table

    monkeypatch.setattr("pipelines.router.arms.read_table", read_slowly)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(live.read)
        assert has_parsed.wait(120)
        write_table(path, newer)
        fast = pool.submit(live.read)
        wait([fast], timeout=0.2)  # without a lock it ends here, with one it waits for the slow reader
        may_go_on.set()
        assert slow.result() == older
        assert fast.result() == newer
    assert live.read() == newer
