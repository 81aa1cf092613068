"""Tests of a rollout's state file: it survives, and other files are left alone."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.canary.controller.evidence import Collected
from pipelines.canary.controller.orders import has_controller, sole_controller
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress
from pipelines.canary.controller.state import Store, set_aside
from pipelines.canary.report.record import Transition
from pipelines.errors import CanaryError
from tests.unit.canary.requests import request
from tests.unit.canary.simulated_world import BEGAN_AT_S, begun

ROLLOUT = begun()
STEP = Transition(BEGAN_AT_S + 9, "shadow", "step/1", "50 pairs", {"low": float("-inf")}, {"stable": 0.9})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "canary.sqlite"


@pytest.fixture
def store(path: Path) -> Store:
    store = Store(path)
    store.begin(ROLLOUT)
    return store


def refusal(path: Path) -> CanaryError:
    before = path.read_bytes()
    with pytest.raises(CanaryError) as caught:
        Store.existing(path)
    assert path.read_bytes() == before
    error = caught.value
    assert all((error.what, error.values, error.limit, error.remedy))
    return error


def test_a_rollout_and_its_progress_are_read_as_they_were_written(store: Store, path: Path) -> None:
    position = Position("paused", 5.0, 20, "cold_start", 3.0, True, "acceptance_rate 0.45")
    progress = Progress(position, 4, "run/c.sock", "run/t.sock", False, 77, 99, 12.5)
    store.advance(ROLLOUT, progress)
    again = Store.existing(path)
    assert again.latest() == ROLLOUT
    assert again.progress(ROLLOUT) == progress


def test_what_it_keeps_of_answers_is_its_owners_to_read(store: Store, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    Store.existing(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_begins_in_preflight_with_a_new_generation(store: Store) -> None:
    progress = store.progress(ROLLOUT)
    assert (progress.position.phase, progress.generation) == ("preflight", ROLLOUT.generation + 1)
    assert store.record().transitions[0].to_phase == "preflight"


def test_the_record_has_only_requests_that_no_other_may_precede(store: Store) -> None:
    requests = [request(number) for number in range(10)]
    progress = replace(store.progress(ROLLOUT), complete_until_s=7.0)
    store.advance(ROLLOUT, progress, Collected(requests, [{"prompt": "x"}]), STEP)
    record = store.record()
    assert record.requests == tuple(requests[:7])
    assert store.requests(ROLLOUT) == requests
    assert record.divergences == ({"prompt": "x"},)
    assert record.transitions[-1] == replace(STEP, evidence={"low": None})
    assert record.slo == ROLLOUT.plan.slo


def test_one_look_is_written_as_a_whole_or_not_at_all(store: Store, path: Path) -> None:
    bad = {"prompt": object()}
    before = store.progress(ROLLOUT)
    with pytest.raises(TypeError):
        store.advance(ROLLOUT, replace(before, generation=9), Collected([request(1)], [bad]), STEP)
    again = Store.existing(path)
    assert again.progress(ROLLOUT) == before
    assert again.requests(ROLLOUT) == []
    store.advance(ROLLOUT, replace(before, generation=9), Collected([request(1)]))
    assert again.progress(ROLLOUT).generation == 9


def test_a_full_disk_is_an_error_in_four_parts_and_leaves_the_last_state(store: Store, path: Path) -> None:
    before = store.progress(ROLLOUT)
    store._connection.execute("PRAGMA max_page_count = 1")  # SQLite then answers as on a full disk
    many = [request(number) for number in range(500)]
    with pytest.raises(CanaryError) as caught:
        store.advance(ROLLOUT, replace(before, generation=99), Collected(many), STEP)
    error = caught.value
    assert "disk is full" in error.values and str(path) in error.values
    assert all((error.what, error.limit, error.remedy))
    again = Store.existing(path)
    assert (again.progress(ROLLOUT), again.requests(ROLLOUT)) == (before, [])


def test_a_locked_file_is_an_error_in_four_parts(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._connection.execute("PRAGMA busy_timeout = 10")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        for use in (lambda: store.give(ROLLOUT, "abort"), store.latest):
            with pytest.raises(CanaryError, match="database is locked") as caught:
                use()
            assert all((caught.value.values, caught.value.limit, caught.value.remedy))
        other.execute("ROLLBACK")


def test_a_reader_does_not_wait_for_a_controller_that_writes(store: Store, path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert Store.existing(path).latest() == ROLLOUT
        other.execute("ROLLBACK")


def test_orders_are_taken_one_after_the_other(store: Store, path: Path) -> None:
    assert store.next_order(ROLLOUT) is None
    Store.existing(path).give(ROLLOUT, "pause")
    Store.existing(path).give(ROLLOUT, "abort")
    number, word = store.next_order(ROLLOUT) or (0, "")
    assert word == "pause"
    assert store.next_order(ROLLOUT) == (number, "pause")
    store.advance(ROLLOUT, store.progress(ROLLOUT), order=number)
    assert (store.next_order(ROLLOUT) or (0, ""))[1] == "abort"


def test_an_order_is_for_the_rollout_that_it_was_given_to(store: Store) -> None:
    store.give(ROLLOUT, "abort")
    later = begun(canary_id="c2")
    store.begin(later)
    assert store.latest() == later
    assert store.next_order(later) is None
    store.advance(later, store.progress(later), Collected([request(1)]))
    assert store.requests(ROLLOUT) == []


def test_a_file_of_another_version_is_left_as_it_is(store: Store, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    assert "version 1" in refusal(path).values


def test_a_damaged_rollout_is_an_error_in_four_parts(store: Store, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rollout SET progress = replace(progress, 'since_s', 'since')")
    with pytest.raises(CanaryError, match=r"unknown key; position\.since; .*did you mean position\.since_s"):
        store.progress(ROLLOUT)


@pytest.mark.parametrize(("phase", "is_aside"), [("promoted", True), ("aborted", True), ("shadow", False)])
def test_the_ended_rollouts_of_an_earlier_version_are_set_aside(
    phase: str, is_aside: bool, store: Store, path: Path
) -> None:
    """Otherwise every rollout after an update would be refused. A running rollout is never dropped."""
    progress = store.progress(ROLLOUT)
    store.advance(ROLLOUT, replace(progress, position=replace(progress.position, phase=phase)))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 3")
    content = path.read_bytes()
    set_aside(path)
    kept = path.with_name("canary-3.sqlite")
    assert (path.exists(), kept.exists()) == (not is_aside, is_aside)
    assert (kept if is_aside else path).read_bytes() == content
    if is_aside:
        assert Store(path).latest() is None
    else:
        assert "version 3" in refusal(path).values


def test_no_other_file_is_set_aside(store: Store, path: Path, tmp_path: Path) -> None:
    set_aside(tmp_path / "none")
    set_aside(path)
    assert Store.existing(path).latest() == ROLLOUT, "of this version"
    other = tmp_path / "other.sqlite"
    for content in (b"", b"weights of something" * 100):
        other.write_bytes(content)
        set_aside(other)
        assert other.read_bytes() == content


def test_a_file_of_another_program_is_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (number INTEGER)")
    assert "not written by Draftproof" in refusal(path).values


@pytest.mark.parametrize("content", [b"weights of something" * 100, b"{}"])
def test_a_file_that_is_no_database_is_left_as_it_is(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    assert "not a database" in refusal(path).values


def test_without_a_file_there_is_no_rollout_and_none_is_made(path: Path) -> None:
    with pytest.raises(CanaryError, match="there is no rollout"):
        Store.existing(path)
    assert not path.exists()
    with pytest.raises(CanaryError, match="there is no rollout"):
        Store(path).record()


def test_a_second_controller_is_refused_until_the_first_is_gone(path: Path) -> None:
    with sole_controller(path):
        assert has_controller(path)
        with pytest.raises(CanaryError, match="a rollout is already running"), sole_controller(path):
            raise AssertionError
    assert not has_controller(path)
    with sole_controller(path):
        pass
