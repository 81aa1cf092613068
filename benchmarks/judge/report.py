"""Render a simulation as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.judge.simulate import Simulation

_COLUMNS = ("candidate", "rolled back", "promoted", "undecided", "by", "half by", "95 % by")


def as_text(simulations: Sequence[Simulation]) -> str:
    """Render one row per fault, with aligned columns."""
    rows = [_COLUMNS, *map(_row, simulations)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_document(simulation: Simulation) -> dict[str, Any]:
    """Return the outcomes of one fault, ready for JSON."""
    return {
        "fault": simulation.fault.name,
        "runs": len(simulation.runs),
        "rolled_back": simulation.share("fail"),
        "rolled_back_bounds": list(simulation.share_bounds("fail")),
        "promoted": simulation.share("pass"),
        "undecided": simulation.share("inconclusive"),
        "reasons": dict(simulation.reasons),
        "pairs_until_rollback": {
            "half": simulation.pairs_until("fail", 0.5),
            "95 %": simulation.pairs_until("fail", 0.95),
        },
        "pairs_until_promotion": {
            "half": simulation.pairs_until("pass", 0.5),
            "95 %": simulation.pairs_until("pass", 0.95),
        },
    }


def _row(simulation: Simulation) -> tuple[str, ...]:
    low, high = simulation.share_bounds("fail")
    counts = (simulation.pairs_until("fail", share) for share in (0.5, 0.95))
    return (
        simulation.fault.name,
        f"{simulation.share('fail'):.1%} ({low:.1%} to {high:.1%})",
        f"{simulation.share('pass'):.1%}",
        f"{simulation.share('inconclusive'):.1%}",
        ", ".join(name for name, _ in simulation.reasons.most_common(2)) or "-",
        *("-" if number is None else f"{number} pairs" for number in counts),
    )
