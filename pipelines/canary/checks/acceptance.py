"""Compare the acceptance of a pair that was just loaded with the one measured at its build.

The probes repeat the prompts, draft length and greedy sampling of that measurement. It exists for the
embedded runtime alone, which is exact: the same engines give the same counts whatever else is served. So no
difference is random, and a regression is compared with its limits directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipelines.canary.judge.limits import Limit, Limits

Found = Literal["pass", "held", "fail"]
"""``held``: the regression neither passes nor fails and needs review. State files contain the word."""

_ROUNDING = 1e-9  # of a ratio of counts, so that a drop equal to the limit is not above it
_SEVERITY: tuple[Found, ...] = ("pass", "held", "fail")


class Counts(Protocol):
    """Total counts over all prompts, at the build or now."""

    @property
    def num_rounds(self) -> int:
        """Number of target passes."""

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """Number of rounds that accepted draft position i, for each i."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted."""

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds."""


@dataclass(frozen=True)
class BaselineRegression:
    """One figure of acceptance at the build and now.

    Attributes:
        name: Name as in ``Limits``, with the position after a slash.
        at_build: Figure at the build, above 0.
        now: Figure now.
        verdict: Verdict by ``Limits.manifest``.
    """

    name: str
    at_build: float
    now: float
    verdict: Found

    @property
    def drop(self) -> float:
        """Relative drop since the build; negative for a rise."""
        return 1 - self.now / self.at_build

    @property
    def text(self) -> str:
        """Description for people."""
        return f"{self.name} {self.now:.3f}, {self.at_build:.3f} at the build ({self.drop:.1%} less)"

    @property
    def document(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {**vars(self), "drop": self.drop}


def baseline_regressions(now: Counts, at_build: Counts, limits: Limits) -> tuple[BaselineRegression, ...]:
    """Compare rate, length, and survival of the first positions; skips positions never reached at the build.

    Args:
        now: Counts of the loaded pair.
        at_build: Counts of its baseline.
        limits: Limits, of which ``manifest`` and ``survival_positions`` are used.
    """
    limit = limits.manifest
    if limit is None:
        return ()
    return tuple(
        BaselineRegression(name, before, after, _judged(1 - after / before, limit))
        for name, after, before in _figures(now, at_build, limits.survival_positions)
        if before
    )


def worst(found: Iterable[Found]) -> Found:
    """Return the worst of several verdicts; ``pass`` if there are none."""
    return max(found, key=_SEVERITY.index, default="pass")


def _figures(now: Counts, at_build: Counts, num_positions: int) -> Iterator[tuple[str, float, float]]:
    yield "acceptance_rate", now.acceptance_rate, at_build.acceptance_rate
    yield "acceptance_length", now.mean_acceptance_length, at_build.mean_acceptance_length
    survivals = zip(
        _survival(now), _survival(at_build), strict=False
    )  # lengths differ if one was never drafted
    for position, (after, before) in enumerate(survivals, 1):
        if position <= num_positions:
            yield f"survival/{position}", after, before


def _survival(counts: Counts) -> Iterator[float]:
    return (accepted / max(1, counts.num_rounds) for accepted in counts.accepted_per_position)


def _judged(drop: float, limit: Limit[float]) -> Found:
    if drop > limit.rollback_above + _ROUNDING:
        return "fail"
    return "held" if drop > limit.pass_below + _ROUNDING else "pass"
