"""What can be wrong with a candidate, as a change of recorded answers; the faults of the drills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.canary.analysis.observed import ObservedRequest

Change = Callable[[ObservedRequest, np.random.Generator], ObservedRequest]


@dataclass(frozen=True)
class Fault:
    """A kind of bad candidate.

    Attributes:
        name: In words.
        apply: Changes one answer.
    """

    name: str
    apply: Change


def diverging(share: float) -> Fault:
    """The answer to such a share of prompts is another."""

    def apply(request: ObservedRequest, rng: np.random.Generator) -> ObservedRequest:
        return replace(request, tokens="diverged") if rng.random() < share else request

    return Fault(f"{share:.0%} of prompts diverge", apply)


def less_accepted(drop: float) -> Fault:
    """Of the rounds that accept something such a share does not, and another makes up for it, in its time."""

    def apply(request: ObservedRequest, rng: np.random.Generator) -> ObservedRequest:
        if not request.num_rounds:
            return request
        rounds = []
        for drafted, accepted in zip(request.drafted_per_round, request.accepted_per_round, strict=True):
            if accepted and rng.random() < drop:
                rounds += [(drafted, 0), (drafted - 1, accepted - 1)]
            else:
                rounds.append((drafted, accepted))
        return with_rounds(_after_the_first(request, len(rounds) / request.num_rounds), rounds)

    return Fault(f"acceptance cut by {drop:.0%}", apply)


def slower(rise: float) -> Fault:
    """Everything takes so much longer."""

    def apply(request: ObservedRequest, rng: np.random.Generator) -> ObservedRequest:
        ttft_s, e2e_latency_s = (
            None if seconds is None else seconds * (1 + rise)
            for seconds in (request.ttft_s, request.e2e_latency_s)
        )
        return replace(request, ttft_s=ttft_s, e2e_latency_s=e2e_latency_s)

    return Fault(f"{rise:.0%} slower", apply)


def failing(share: float) -> Fault:
    """Such a share of requests gets an error."""

    def apply(request: ObservedRequest, rng: np.random.Generator) -> ObservedRequest:
        if rng.random() >= share:
            return request
        return replace(
            request,
            failure="error",
            ttft_s=None,
            e2e_latency_s=None,
            num_output_tokens=0,
            drafted_per_round=(),
            accepted_per_round=(),
            tokens="",
        )

    return Fault(f"{share:.0%} of requests fail", apply)


NO_FAULT = Fault("no fault", lambda request, rng: request)

DRILLS = (diverging(0.01), less_accepted(0.2), slower(0.3), failing(0.02))


def with_rounds(request: ObservedRequest, rounds: Sequence[tuple[int, int]]) -> ObservedRequest:
    """The same answer by other rounds, each of so many drafted and accepted tokens."""
    return replace(
        request,
        drafted_per_round=tuple(drafted for drafted, _ in rounds),
        accepted_per_round=tuple(accepted for _, accepted in rounds),
    )


def _after_the_first(request: ObservedRequest, factor: float) -> ObservedRequest:
    """Slower by a factor from the first token on."""
    if request.e2e_latency_s is None:
        return request
    first_s = request.ttft_s or 0.0
    return replace(request, e2e_latency_s=first_s + factor * (request.e2e_latency_s - first_s))
