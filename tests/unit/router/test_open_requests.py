"""Tests of the point up to which a log is complete: the arrival of the oldest request still open."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
