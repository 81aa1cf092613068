"""Compare what several drafts of a target have shown: a table, and which of them is the fastest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipelines.bench.figures import acceptance_rate
from pipelines.bench.reporting.section import Table
from pipelines.demo.__main__ import Shown
from pipelines.demo.summary import KindFigures, figures_of


@dataclass(frozen=True)
class Trial:
    """What a demonstration with one draft has shown.

    Attributes:
        name: Name of the draft.
        recipe: Recipe of the pair.
        shown: The demonstration.
    """

    name: str
    recipe: Path
    shown: Shown

    @cached_property
    def figures(self) -> list[KindFigures]:
        """Figures of greedy answers by kind of text."""
        return figures_of(self.shown.pairs)

    @property
    def is_wrong(self) -> bool:
        """Whether an answer differs from the target's own, or none has two tokens to compare."""
        return bool(self.shown.document["answers_that_differ"]) or not self.figures

    @property
    def gain(self) -> float:
        """Speed over that of the target alone, the geometric mean over kinds of text; 0 without figures."""
        return statistics.geometric_mean([each.ratio.value for each in self.figures]) if self.figures else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens of greedy answers; None if nothing was drafted."""
        return acceptance_rate([pair.speculative for pair in self.shown.pairs if not pair.temperature])

    @property
    def tokens_per_round(self) -> float:
        """Output tokens of greedy answers for each pass of the target."""
        answers = [pair.speculative for pair in self.shown.pairs if not pair.temperature]
        return sum(each.num_output_tokens for each in answers) / max(
            sum(each.num_rounds for each in answers), 1
        )


def fastest(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the greatest gain; of equal ones, the first."""
    return max(trials, key=lambda trial: trial.gain)


def table(trials: Sequence[Trial]) -> str:
    """Format what drafts gain by kind of text, what share is accepted, and what a round costs."""
    kinds = [each.kind for each in trials[0].figures]
    rows = []
    for trial in trials:
        gains = {each.kind: f"{each.ratio.value:.2f}" for each in trial.figures}
        rate, gain, tokens = trial.acceptance_rate, trial.gain, trial.tokens_per_round
        shown = [f"{gain:.2f}", "-" if rate is None else f"{rate:.2f}", f"{tokens:.2f}"]
        cost = f"{tokens / gain:.2f}" if gain else "-"
        rows.append((trial.name, *(gains.get(kind, "-") for kind in kinds), *shown, cost))
    columns = "", *kinds, "all", "accepted", "tokens a round", "cost of a round"
    said = (
        "Speed over that of the target alone, one request at a time, geometric means of answers.",
        "A round is a pass of the target with its drafts; it costs so many tokens of the target alone.",
    )
    return "\n".join([*Table(columns, tuple(rows)).lines(), *said])
