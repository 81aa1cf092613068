"""Tests of the point up to which a log is complete: the arrival of the oldest request still open."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import ServerStartError
from pipelines.process import ProcessIdentity
from pipelines.router.open_requests import OpenRequests, unix_time_s


def test_the_clock_is_unix_time() -> None:
    assert unix_time_s() == pytest.approx(time.time(), abs=5)


def test_with_no_request_left_everything_so_far_is_known() -> None:
    now_s = iter((1.0, 4.0))
    requests = OpenRequests(clock=lambda: next(now_s))
    number, arrived_at_s = requests.begin()
    assert (arrived_at_s, len(requests)) == (1.0, 1)
    assert (requests.end(number), len(requests)) == (4.0, 0)


@given(st.lists(st.integers(min_value=-3, max_value=2), max_size=60))
def test_what_arrived_before_the_mark_has_ended(steps: list[int]) -> None:
    now_s = 0.0
    requests = OpenRequests(clock=lambda: now_s)
    still_open: dict[int, float] = {}
    for step in steps:
        now_s += 1
        if step < 0 or len(still_open) <= step:
            number, arrived_at_s = requests.begin()
            still_open[number] = arrived_at_s
        else:
            number = list(still_open)[step]
            del still_open[number]
            assert requests.end(number) == min(still_open.values(), default=now_s)
        assert len(requests) == len(still_open)


def _hold_one(path: Path, is_open: Any, may_end: Any) -> None:
    OpenRequests(path).begin()
    is_open.set()
    may_end.wait()


def test_the_oldest_request_of_another_router_counts_until_its_process_ends(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    is_open, may_end = context.Event(), context.Event()
    ours = OpenRequests(tmp_path / "log.open")
    other = context.Process(target=_hold_one, args=(tmp_path / "log.open", is_open, may_end), daemon=True)
    other.start()
    assert is_open.wait(120)
    number, arrived_at_s = ours.begin()
    assert len(ours) == 2
    assert ours.end(number) < arrived_at_s
    may_end.set()
    other.join()
    number, arrived_at_s = ours.begin()
    assert len(ours) == 1
    assert ours.end(number) >= arrived_at_s


@pytest.mark.parametrize("is_thread", [False, True])
def test_an_id_that_was_given_again_is_not_the_router_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_thread: bool
) -> None:
    """A container gives the same few ids to its processes and threads, and a killed router cleans nothing."""
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, daemon=True)
    thread.start()
    number_of_both = thread.native_id if is_thread else os.getppid()
    with monkeypatch.context() as killed:
        killed.setattr(os, "getpid", lambda: number_of_both)
        killed.setattr(ProcessIdentity, "of", lambda pid: ProcessIdentity(pid, start_ticks=1))
        OpenRequests(tmp_path / "log.open").begin()
    ours = OpenRequests(tmp_path / "log.open")
    number, arrived_at_s = ours.begin()
    assert len(ours) == 1
    assert ours.end(number) >= arrived_at_s
    may_end.set()


def test_more_routers_than_slots_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessIdentity, "is_alive", True)
    for pid in range(1, 17):
        with monkeypatch.context() as patched:
            patched.setattr(ProcessIdentity, "of", lambda _, pid=pid: ProcessIdentity(pid, 1))
            OpenRequests(tmp_path / "log.open")
    with pytest.raises(ServerStartError, match="too many routers"):
        OpenRequests(tmp_path / "log.open")
    monkeypatch.setattr(ProcessIdentity, "is_alive", False)
    OpenRequests(tmp_path / "log.open")
