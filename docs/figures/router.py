"""The table of ``benchmarks.router_cost``."""

from __future__ import annotations

from docs.figures.added_times import added_times, how_asked
from docs.figures.words import Document, conditions


def router_cost(document: Document) -> str:
    """Return one line for each time, then the speed with several concurrent requests."""
    ratio = document["speed_ratio"]
    lines = [
        *added_times(document, "`generate`", "`router`"),
        "",
        f"{document['num_at_once']} concurrent requests: {ratio['value']:.2f} times the output tokens "
        f"per second ({ratio['low']:.2f} to {ratio['high']:.2f}). {how_asked(document, 'requests')}",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)
