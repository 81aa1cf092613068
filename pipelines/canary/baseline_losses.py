"""What a pair that was just loaded has lost of the acceptance that was measured at its build.

Prompts, draft length and greedy answers are those of the measurement, and the one runtime that is measured,
the embedded one, is exact: the same engines give the same counts, bit for bit, whoever is served beside them.
So nothing here is a sample, no difference is chance, and a loss is compared with its limits as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipelines.canary.analysis.limits import Limits
from pipelines.validation.section import Section, Table

Found = Literal["pass", "held", "fail"]
"""``held``: lost more than may pass, and not so much that it leaves; a person is to decide."""

_COLUMNS = ("loss", "verdict", "at the build", "now", "lost", "held above", "fails above")
_ROUNDING = 1e-9  # of a ratio of counts: a drop of just the limit is not above it
_GRAVITY: tuple[Found, ...] = ("pass", "held", "fail")


class Counts(Protocol):
    """Counts of all prompts together, at the build or now."""

    @property
    def num_rounds(self) -> int:
        """Target passes."""

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """Entry i: rounds in which draft position i was accepted."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted."""

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds."""


@dataclass(frozen=True)
class BaselineLoss:
    """One figure at the build and now.

    Attributes:
        name: As in ``Limits``, with the position after a slash.
        at_build: Above 0.
        now: The same figure.
        verdict: By ``Limits.manifest``.
    """

    name: str
    at_build: float
    now: float
    verdict: Found

    @property
    def drop(self) -> float:
        """What is lost, as a share of what there was; below 0 for a gain."""
        return 1 - self.now / self.at_build

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.name} {self.now:.3f}, {self.at_build:.3f} at the build ({self.drop:.1%} less)"

    @property
    def document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**vars(self), "drop": self.drop}


def baseline_losses(now: Counts, at_build: Counts, limits: Limits) -> tuple[BaselineLoss, ...]:
    """Rate, length, and survival of the first positions; a position that nothing reached cannot lose.

    Args:
        now: Of the loaded pair.
        at_build: Of its baseline, in which something was drafted.
        limits: ``manifest`` and ``survival_positions``.
    """
    return tuple(
        BaselineLoss(name, before, after, _judged(1 - after / before, limits))
        for name, after, before in _figures(now, at_build, limits.survival_positions)
        if before
    )


def worst(found: Iterable[Found]) -> Found:
    """Of several; ``pass`` of none."""
    return max(found, key=_GRAVITY.index, default="pass")


def probes_section(evidence: dict[str, Any]) -> Section:
    """The part of a report.

    Args:
        evidence: Of ``cold_start``, as the state file has it, with a baseline.
    """
    holds, fails = (evidence["limits"][name] for name in ("drop_holds_above", "drop_fails_above"))
    losses = evidence["losses"]
    rows = [
        (
            loss["name"],
            loss["verdict"],
            f"{loss['at_build']:.4f}",
            f"{loss['now']:.4f}",
            f"{loss['drop']:+.2%}",
            f"{holds:+.2%}",
            f"{fails:+.2%}",
        )
        for loss in losses
    ]
    verdict = worst(loss["verdict"] for loss in losses)
    return Section(
        "Acceptance of the probes beside that at the build",
        "inconclusive" if verdict == "held" else verdict,
        f"{len(evidence['prompts'])} prompts of the measurement, asked again before any client's request. "
        "The same engines give the same counts, so no difference is chance.",
        Table(_COLUMNS, tuple(rows)),
        document={name: evidence[name] for name in ("probe", "losses", "limits")},
    )


def _figures(now: Counts, at_build: Counts, num_positions: int) -> Iterator[tuple[str, float, float]]:
    yield "acceptance_rate", now.acceptance_rate, at_build.acceptance_rate
    yield "acceptance_length", now.mean_acceptance_length, at_build.mean_acceptance_length
    survivals = zip(_survival(now), _survival(at_build), strict=False)  # one has positions that nobody drafts
    for position, (after, before) in enumerate(survivals, 1):
        if position <= num_positions:
            yield f"survival/{position}", after, before


def _survival(counts: Counts) -> Iterator[float]:
    return (accepted / max(1, counts.num_rounds) for accepted in counts.accepted_per_position)


def _judged(drop: float, limits: Limits) -> Found:
    if drop > limits.manifest.rollback_above + _ROUNDING:
        return "fail"
    return "held" if drop > limits.manifest.pass_below + _ROUNDING else "pass"
