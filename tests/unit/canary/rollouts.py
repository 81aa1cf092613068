"""Records of rollouts for tests of the canary's gates and report."""

from __future__ import annotations

from typing import Any

from pipelines.canary.report.record import RolloutRecord
from tests.unit.canary.requests import LIMITS, SLO, samples


def rollout(**changes: Any) -> RolloutRecord:
    """Return a rollout in its first step of weights, without observations."""
    given: dict[str, Any] = {
        "canary_id": "c1",
        "recipe_stable": "demo",
        "recipe_candidate": "demo-int8",
        "began_at_s": 1_700_000_000.0,
        "phase": "step/1",
        "transitions": (),
        "requests": (),
        "samples": samples(),
        "divergences": (),
        "limits": LIMITS,
        "slo": SLO,
    }
    return RolloutRecord(**{**given, **changes})
