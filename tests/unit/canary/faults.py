"""Faults of a candidate, each applied to recorded answers; the drills use the same faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.router.observation import Observation

Change = Callable[[Observation, np.random.Generator], Observation]


@dataclass(frozen=True)
class Fault:
    """A kind of bad candidate: what it is called, and how it changes one answer."""

    name: str
    apply: Change


def diverging(share: float) -> Fault:
    """Make the answers to a share of the prompts diverge."""

    def apply(request: Observation, rng: np.random.Generator) -> Observation:
        return replace(request, answer="diverged") if rng.random() < share else request

    return Fault(f"{share:.0%} of prompts diverge", apply)


def less_accepted(drop: float) -> Fault:
    """Make a share of the rounds that accept tokens accept none; an extra round takes over their tokens."""

    def apply(request: Observation, rng: np.random.Generator) -> Observation:
        if not request.drafted_per_round:
            return request
        rounds = []
        for drafted, accepted in zip(request.drafted_per_round, request.accepted_per_round, strict=True):
            if accepted and rng.random() < drop:
                rounds += [(drafted, 0), (drafted - 1, accepted - 1)]
            else:
                rounds.append((drafted, accepted))
        return with_rounds(
            _slow_down_after_first_token(request, len(rounds) / len(request.drafted_per_round)), rounds
        )

    return Fault(f"acceptance cut by {drop:.0%}", apply)


def slower(rise: float) -> Fault:
    """Lengthen every time by a share of it."""

    def apply(request: Observation, rng: np.random.Generator) -> Observation:
        times = {"ttft_s": request.ttft_s, "e2e_latency_s": request.e2e_latency_s}
        return replace(request, **{name: s and s * (1 + rise) for name, s in times.items()})

    return Fault(f"{rise:.0%} slower", apply)


def failing(share: float) -> Fault:
    """Make a share of the requests fail with an error."""

    def apply(request: Observation, rng: np.random.Generator) -> Observation:
        if rng.random() >= share:
            return request
        nothing = replace(request, failure="error", ttft_s=None, e2e_latency_s=None, answer="")
        return replace(with_rounds(nothing, ()), num_output_tokens=0)

    return Fault(f"{share:.0%} of requests fail", apply)


NO_FAULT = Fault("no fault", lambda request, rng: request)

DRILLS = (diverging(0.01), less_accepted(0.2), slower(0.3), failing(0.02))


def with_rounds(request: Observation, rounds: Sequence[tuple[int, int]]) -> Observation:
    """Replace the rounds of an answer by others, each a pair of drafted and accepted tokens."""
    return replace(
        request,
        drafted_per_round=tuple(drafted for drafted, _ in rounds),
        accepted_per_round=tuple(accepted for _, accepted in rounds),
    )


def _slow_down_after_first_token(request: Observation, factor: float) -> Observation:
    if request.e2e_latency_s is None:
        return request
    first_s = request.ttft_s or 0.0
    return replace(request, e2e_latency_s=first_s + factor * (request.e2e_latency_s - first_s))
