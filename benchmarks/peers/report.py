"""Report the comparison as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.figures import ArmFigures, Spread, best_lengths

_HEAD = (
    f"{'prompts':<12} {'concurrency':>11}  {'arm':<24} {'output tokens/s':>22} {'/ its target alone':>20} "
    f"{'ours / this':>18} {'differ':>9} {'unsteady':>8} {'as ours':>7}"
)


def table(figures: Sequence[ArmFigures]) -> str:
    """Format one line per prompt set, load and arm, with the spread of each figure in brackets."""
    lines = [_HEAD, "-" * len(_HEAD)]
    for entry in sorted(figures, key=lambda entry: (entry.num_at_once, entry.prompt_set == "all")):
        lines.append(
            f"{entry.prompt_set:<12} {entry.num_at_once:>11}  {entry.arm!s:<24} "
            f"{_cell(entry.output_tokens_per_s, 1):>22} {_cell(entry.ratio_to_alone, 2):>20} "
            f"{_cell(entry.ours_to_this, 2):>18} {f'{entry.num_different}/{entry.num_answers}':>9} "
            f"{entry.num_unsteady:>8} {entry.same_as_ours:>7.3f}"
        )
    return "\n".join(lines)


def conclusion(figures: Sequence[ArmFigures], failures: Mapping[str, str]) -> str:
    """Summarize our speed relative to each peer's best draft length, and list what was not measured."""
    lines = [
        f"{entry.prompt_set}, {entry.num_at_once} concurrent: ours is {_cell(entry.ours_to_this, 2)} times "
        f"as fast as {entry.arm}, the best of {entry.arm.engine}"
        for entry in best_lengths(figures)
    ]
    lines += [f"NOT MEASURED: {name}: {reason}" for name, reason in failures.items()]
    return "\n".join(lines)


def as_document(figures: Sequence[ArmFigures], failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the comparison as a JSON object."""
    return {
        "arms": [
            {
                **dataclasses.asdict(entry),
                "arm": str(entry.arm),
                "engine": entry.arm.engine,
                "num_draft_tokens": entry.arm.num_draft_tokens,
            }
            for entry in figures
        ],
        "best": [
            {
                "engine": entry.arm.engine,
                "prompt_set": entry.prompt_set,
                "num_at_once": entry.num_at_once,
                "num_draft_tokens": entry.arm.num_draft_tokens,
                "ours_to_this": dataclasses.asdict(entry.ours_to_this),
            }
            for entry in best_lengths(figures)
        ],
        "not_measured": dict(failures),
    }


def _cell(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:.{digits}f} [{spread.low:.{digits}f}..{spread.high:.{digits}f}]"
