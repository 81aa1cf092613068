"""Observed requests for tests of the canary's analysis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.bench.slo import Slo
from pipelines.canary.analysis.limits import Limits, read_limits
from pipelines.canary.analysis.observed import ObservedRequest

SLO = Slo(ttft_s=0.1, itl_s=0.03)
LIMITS = read_limits()


def limits(**changes: Any) -> Limits:
    """The default limits with some replaced."""
    return Limits(**{**vars(LIMITS), **changes})


def request(number: int, arm: str = "candidate", **changes: Any) -> ObservedRequest:
    """An answer of 16 tokens to a client, in 4 rounds of 4 draft tokens, 12 of which were accepted."""
    given: dict[str, Any] = {
        "request_id": f"{arm}-{number}",
        "arm": arm,
        "arrived_at_s": float(number),
        "band": "low",
        "ttft_s": 0.02,
        "e2e_latency_s": 0.17,
        "num_output_tokens": 16,
        "drafted_per_round": (4, 4, 4, 4),
        "accepted_per_round": (4, 3, 4, 1),
    }
    return ObservedRequest(**{**given, **changes})


def failed(number: int, arm: str = "candidate", failure: str = "error") -> ObservedRequest:
    """A request without an answer."""
    nothing = {"ttft_s": None, "e2e_latency_s": None, "num_output_tokens": 0}
    rounds = {"drafted_per_round": (), "accepted_per_round": ()}
    return request(number, arm, failure=failure, **nothing, **rounds)


def replay(number: int, **changes: Any) -> ObservedRequest:
    """The candidate's answer to what the stable pair answered under this number, compared with that."""
    repeated = {
        "request_id": f"stable-{number}",
        "is_replay": True,
        "tokens": "equal",
        "num_common_tokens": 16,
    }
    return request(number, "candidate", **{**repeated, **changes})


def recorded_traffic() -> list[ObservedRequest]:
    """Answers of a server of ``demo``: recorded_traffic.jsonl says on its first line how they were made."""
    lines = Path(__file__).with_name("recorded_traffic.jsonl").read_text(encoding="utf-8").splitlines()
    columns = json.loads(lines[0])["columns"]
    found = []
    for number, line in enumerate(lines[1:]):
        fields = dict(zip(columns, json.loads(line), strict=True))
        found.append(
            ObservedRequest.from_document({"request_id": str(number), "arrived_at_s": number, **fields})
        )
    return found
