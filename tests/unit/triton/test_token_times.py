"""Tests of the times to the first token and between tokens on the metrics port."""

from __future__ import annotations

import pytest

from pipelines.triton.engine.token_times import TokenTimes
from tests.support.recorded_gauges import RecordedGauges

TTFT, ITL = "draftproof_ttft_seconds", "draftproof_itl_seconds"


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("responses", "ttft", "itl"),
    [
        ([(0.5, 1, False), (1.0, 4, False), (2.5, 6, True)], [0.5], [0.4]),
        ([(0.5, 1, True)], [0.5], []),
        ([(0.5, 0, True)], [], []),
        ([(0.5, 3, True)], [0.5], []),  # one response: there is no time between its tokens
    ],
)
def test_times_are_counted_from_the_request_and_per_token(
    responses: list[tuple[float, int, bool]], ttft: list[float], itl: list[float]
) -> None:
    gauges, clock = RecordedGauges(), Clock()
    note = TokenTimes(gauges, clock).begin()  # type: ignore[arg-type]
    for at_s, num_tokens, is_final in responses:
        clock.now_s = 10.0 + at_s
        note(num_tokens, is_final)
    assert gauges.values[TTFT] == pytest.approx(ttft)
    assert gauges.values[ITL] == pytest.approx(itl)
