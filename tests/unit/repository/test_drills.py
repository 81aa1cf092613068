"""Tests of what the drills of a server count, and what they report as faults."""

from __future__ import annotations

import dataclasses

import pytest

from pipelines.client.refusals import timed_out, unreachable
from pipelines.errors import EngineFailedError, InternalError, RequestTimeoutError, from_wire
from tests.drills.asking import EQUAL, Heard, Tally, class_of
from tests.drills.outcome import DIED, Drill, Outcome, judge

DRILL = Drill("a death", lambda place: Outcome(), DIED, replaces=True)
PASSED = Outcome(
    Tally([Heard(0.0, 1.0, EQUAL), Heard(0.5, 1.2, "engine_failed")]),
    not_ready_s=0.2,
    ready_s=3.0,
    first_error_s=0.1,
    last_error_s=3.1,
    metrics_are_true=True,
    gone_s=0.3,
)


def test_a_drill_as_it_has_to_be_has_no_faults() -> None:
    assert judge(DRILL, PASSED) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tally": Tally([*PASSED.tally.heard, Heard(0.0, 20.0, "hung")])}, "1 requests hung"),
        ({"tally": Tally([*PASSED.tally.heard, Heard(0.0, 1.0, "wrong")])}, "1 answers were wrong"),
        ({"tally": Tally([*PASSED.tally.heard, Heard(0.0, 1.0, "lost")])}, "without the whole answer"),
        ({"tally": Tally([*PASSED.tally.heard, Heard(0.0, 1.0, "connection")])}, "clients heard"),
        ({"tally": Tally([Heard(0.0, 1.0, "engine_failed")])}, "nobody got an answer"),
        ({"not_ready_s": 2.1}, "told of it after 2.1 s"),
        ({"not_ready_s": None}, "told of it after None s"),
        ({"ready_s": 10.1}, "whole again after 10.1 s"),
        ({"ready_s": None}, "whole again after None s"),
        ({"last_error_s": 5.1}, "errors went on"),
        ({"metrics_are_true": False}, "the metrics did not tell"),
        ({"gone_s": 5.1}, "left 5.1 s after"),
        ({"faults": ["another process died"]}, "another process died"),
    ],
)
def test_whatever_is_not_as_it_has_to_be_is_said(changes: dict[str, object], word: str) -> None:
    [fault] = judge(DRILL, dataclasses.replace(PASSED, **changes))  # type: ignore[arg-type]
    assert word in fault


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (timed_out("no response", 20), "hung"),
        (from_wire(RequestTimeoutError("its deadline passed").to_wire()), "hung"),
        (unreachable("here", "the stream ended before the last response"), "lost"),
        (InternalError("the server's answer is inconsistent"), "lost"),
        (unreachable("here", "connection refused"), "connection"),
        (EngineFailedError("it died"), "engine_failed"),
        (InternalError("the server failed on this request"), "internal"),
    ],
)
def test_an_error_says_what_became_of_the_request(error: EngineFailedError, outcome: str) -> None:
    assert class_of(error) == outcome
