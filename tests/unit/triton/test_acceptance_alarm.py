"""Tests of the acceptance rate of the last minute and its alarm."""

from __future__ import annotations

import logging
import threading
from collections import deque

import pytest

from pipelines.triton.engine.acceptance_alarm import LEAST_DRAFT_TOKENS, WINDOW_S, AcceptanceAlarm


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_the_rate_is_that_of_the_last_minute() -> None:
    clock = Clock()
    alarm = AcceptanceAlarm(clock)
    assert alarm.rate is None
    alarm.add(10, 9)
    clock.now_s += WINDOW_S / 2
    alarm.add(10, 1)
    assert alarm.rate == 0.5
    clock.now_s += WINDOW_S / 2 + 1
    assert alarm.rate == 0.1
    clock.now_s += WINDOW_S
    assert alarm.rate is None


def test_a_pair_that_does_not_fit_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    alarm = AcceptanceAlarm(Clock())
    for _ in range(LEAST_DRAFT_TOKENS // 10 - 1):
        alarm.add(10, 1)
    assert not caplog.records, "a few tokens are no evidence"
    for _ in range(50):
        alarm.add(10, 1)
    assert len(caplog.records) == 1 and alarm.is_unfit
    assert "num_draft_tokens: 0" in caplog.text
    for _ in range(1000):
        alarm.add(10, 9)
    assert not alarm.is_unfit


def test_the_rate_may_be_read_on_another_thread_while_old_rounds_expire() -> None:
    clock = Clock()
    alarm = AcceptanceAlarm(clock)

    class Interrupted(deque[tuple[int, int, int]]):
        has_been_interrupted = False

        def popleft(self) -> tuple[int, int, int]:
            if not self.has_been_interrupted:
                self.has_been_interrupted = True
                reader.start()
                reader.join(0.2)  # without a lock it ends here, with one it waits for its turn
            return super().popleft()

    rates: list[float | None] = []
    reader = threading.Thread(target=lambda: rates.append(alarm.rate))
    alarm._seconds = Interrupted()
    alarm.add(10, 9)
    clock.now_s += WINDOW_S + 1
    alarm.add(10, 1)
    reader.join()
    assert rates in ([0.1], [None]), "the reader came before or after the round"
    assert alarm.rate == 0.1
