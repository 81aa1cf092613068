"""Tests of a rollout's state file: it survives, and other files are left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.canary.controller.evidence import Collected
from pipelines.canary.controller.orders import has_controller, sole_controller
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress
from pipelines.canary.controller.state import Store
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


def test_it_begins_in_preflight_and_is_read_as_it_was_written(store: Store, path: Path) -> None:
    begun_ = store.progress(ROLLOUT)
    assert (begun_.position.phase, begun_.generation) == ("preflight", ROLLOUT.generation + 1)
    position = Position("paused", 5.0, 20, "shadow", 3.0, True)
    progress = Progress(position, 4, "run/c.sock", False, 77, 99, 12.5)
    store.advance(ROLLOUT, progress)
    again = Store.existing(path)
    assert (again.latest(), again.progress(ROLLOUT)) == (ROLLOUT, progress)


def test_what_it_keeps_of_answers_is_its_owners_to_read(store: Store, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    Store.existing(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_record_has_only_requests_that_no_other_may_precede(store: Store) -> None:
    requests = [request(number) for number in range(10)]
    progress = replace(store.progress(ROLLOUT), complete_until_s=7.0)
    store.advance(ROLLOUT, progress, Collected(requests), STEP)
    record = store.record()
    assert (record.requests, store.requests(ROLLOUT)) == (tuple(requests[:7]), requests)
    assert [each.to_phase for each in record.transitions] == ["preflight", "step/1"]
    assert record.transitions[-1] == replace(STEP, evidence={"low": None})
    assert record.rollout == ROLLOUT


@pytest.mark.parametrize("fault", ["no JSON", "full disk", "locked"])
def test_one_cycle_is_written_as_a_whole_or_not_at_all(fault: str, store: Store, path: Path) -> None:
    before = store.progress(ROLLOUT)
    after, found = replace(before, generation=9), Collected([request(number) for number in range(500)])
    if fault == "no JSON":
        with pytest.raises(TypeError):
            store.advance(ROLLOUT, after, replace(found, samples=[object()]), STEP)
    else:
        store._connection.execute("PRAGMA busy_timeout = 10")
        other = sqlite3.connect(path, isolation_level=None)
        if fault == "locked":
            other.execute("BEGIN EXCLUSIVE")
        else:
            store._connection.execute("PRAGMA max_page_count = 1")  # SQLite then answers as on a full disk
        with pytest.raises(CanaryError, match=r"database is locked|disk is full") as caught:
            store.advance(ROLLOUT, after, found, STEP)
        assert str(path) in caught.value.message and caught.value.remedy
        other.close()
        store._connection.execute("PRAGMA max_page_count = 100000")
    again = Store.existing(path)
    assert (again.progress(ROLLOUT), again.requests(ROLLOUT)) == (before, [])
    store.advance(ROLLOUT, after, found)
    assert again.progress(ROLLOUT).generation == 9


def test_a_reader_does_not_wait_for_a_controller_that_writes(store: Store, path: Path) -> None:
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert Store.existing(path).latest() == ROLLOUT
        other.execute("ROLLBACK")


def test_orders_are_taken_in_turn_by_the_rollout_that_they_were_given_to(store: Store, path: Path) -> None:
    assert store.next_order(ROLLOUT) is None
    Store.existing(path).give(ROLLOUT, "pause")
    Store.existing(path).give(ROLLOUT, "abort")
    number, word = store.next_order(ROLLOUT) or (0, "")
    assert (word, store.next_order(ROLLOUT)) == ("pause", (number, "pause"))
    store.advance(ROLLOUT, store.progress(ROLLOUT), order=number)
    assert (store.next_order(ROLLOUT) or (0, ""))[1] == "abort"
    later = begun(canary_id="c2")
    store.begin(later)
    assert (store.latest(), store.next_order(later)) == (later, None)
    store.advance(later, store.progress(later), Collected([request(1)]))
    assert store.requests(ROLLOUT) == []


def with_marks(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: with_marks(path, "PRAGMA user_version = 1"), "version 1"),
        (lambda path: with_marks(path, "PRAGMA application_id = 7"), "not written by Draftproof"),
        (lambda path: path.write_bytes(b"weights of something" * 100), "not a database"),
        (lambda path: path.write_bytes(b"{}"), "not a database"),
    ],
)
def test_a_file_of_others_is_refused_and_left_as_it_is(
    spoil: Callable[[Path], None], said: str, store: Store, path: Path
) -> None:
    store.close()
    spoil(path)
    content = path.read_bytes()
    with pytest.raises(CanaryError, match=said) as caught:
        Store.existing(path)
    assert caught.value.message and caught.value.remedy
    assert path.read_bytes() == content


def test_a_damaged_rollout_is_an_error_that_names_the_key(store: Store, path: Path) -> None:
    with_marks(path, "UPDATE rollout SET progress = replace(progress, 'since_s', 'since')")
    with pytest.raises(CanaryError, match=r"position\.since is unknown; .*did you mean position\.since_s"):
        store.progress(ROLLOUT)


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
