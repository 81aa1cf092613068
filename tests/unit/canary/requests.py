"""Observed requests, samples and records for tests of rollouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.canary.controller.plan import read_plan
from pipelines.canary.controller.rollout import Rollout, from_text
from pipelines.canary.judge.limits import Limits, Slo, read_limits
from pipelines.canary.judge.resources import Sample, Taken
from pipelines.canary.report.record import RolloutRecord, Transition
from pipelines.router.observation import Observation

SLO = Slo(ttft_s=0.1, itl_s=0.03)
LIMITS = read_limits()
NO_ROUNDS: dict[str, Any] = {"drafted_per_round": (), "accepted_per_round": ()}


def limits(**changes: Any) -> Limits:
    """Return the default limits with some replaced."""
    return Limits(**{**vars(LIMITS), **changes})


def request(number: int, arm: str = "candidate", **changes: Any) -> Observation:
    """Return an answer to a client: 16 tokens in 4 rounds of 4 draft tokens, 12 of which were accepted."""
    given: dict[str, Any] = {
        "canary_id": "c1",
        "request_id": f"{arm}-{number}",
        "arm": arm,
        "arrived_at_s": float(number),
        "oldest_open_at_s": float(number),
        "band": "low",
        "ttft_s": 0.02,
        "e2e_latency_s": 0.17,
        "num_output_tokens": 16,
        "drafted_per_round": (4, 4, 4, 4),
        "accepted_per_round": (4, 3, 4, 1),
    }
    return Observation(**{**given, **changes})


def failed(number: int, arm: str = "candidate", failure: str = "error") -> Observation:
    """Return a request without an answer."""
    nothing = {"ttft_s": None, "e2e_latency_s": None, "num_output_tokens": 0, **NO_ROUNDS}
    return request(number, arm, failure=failure, **nothing)


def replay(number: int, **changes: Any) -> Observation:
    """Return a replay to the candidate, compared with the stable pair's answer of this number."""
    repeated = {"request_id": f"stable-{number}", "is_replay": True, "answer": "equal"}
    return request(number, "candidate", **{**repeated, "num_common_tokens": 16, **changes})


def samples(
    num: int = 200, candidate_cpu: float = 1.0, leak: float = 0.0, num_slices: int | None = None
) -> tuple[Sample, ...]:
    """Return samples of two pairs every 5 s, each with a second of CPU time per 100 tokens unless changed.

    Args:
        candidate_cpu: The candidate's CPU time relative to the stable pair's.
        leak: The relative growth of the candidate's memory over the whole time.
        num_slices: The number of samples after which no more requests arrive; None for no end.
    """
    found = []
    for number in range(num):
        tokens = 400.0 * (number if num_slices is None else min(number, num_slices))
        candidate = Taken(1e9 * (1 + leak * number / num), candidate_cpu * tokens / 100, tokens)
        found.append(Sample(5.0 * number, candidate, Taken(1e9, tokens / 100, tokens)))
    return tuple(found)


def moved(before: str, after: str, reason: str = "because", **evidence: Any) -> Transition:
    """Return a change of phase."""
    return Transition(5.0, before, after, reason, evidence, {"stable": 1.0})


def rollout(phase: str = "step/1", *transitions: Transition, **changes: Any) -> RolloutRecord:
    """Return the record of a rollout, without observations unless given."""
    plan = replace(read_plan(), slo_ttft_s=SLO.ttft_s, slo_itl_s=SLO.itl_s)
    settings = Rollout("c1", "demo", "demo-int8", 1.7e9, plan, changes.pop("limits", LIMITS), "", 0)
    given: dict[str, Any] = {"requests": (), "samples": samples()}
    return RolloutRecord(settings, phase, transitions, **{**given, **changes})


def recorded_traffic() -> list[Observation]:
    """Return recorded answers of a ``demo`` server; recorded_traffic.jsonl says how they were made."""
    lines = Path(__file__).with_name("recorded_traffic.jsonl").read_text(encoding="utf-8").splitlines()
    columns = json.loads(lines[0])["columns"]
    found = []
    for number, line in enumerate(lines[1:]):
        known = {
            "canary_id": "",
            "request_id": str(number),
            "arrived_at_s": number,
            "oldest_open_at_s": number,
        }
        fields = {**known, **dict(zip(columns, json.loads(line), strict=True))}
        found.append(from_text(Observation, json.dumps(fields)))
    return found
