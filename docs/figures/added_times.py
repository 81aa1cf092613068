"""Write what ``benchmarks.router_cost`` and ``benchmarks.front_door.cost`` measured of single requests."""

from __future__ import annotations

from docs.figures.words import Document

_TIMES = {"ttft": "first token", "itl": "each further token"}


def added_times(document: Document, direct: str, routed: str) -> list[str]:
    """Return the lines of a table of times without and with a further process, one line for each time.

    Args:
        document: The measurement.
        direct: Head of the column without the process.
        routed: Head of the column with it.
    """
    lines = [
        f"| One request at a time | {direct} | {routed} | Added, median | 95 % interval |",
        "|---|---|---|---|---|",
    ]
    for key, words in _TIMES.items():
        added = document[key]
        interval = added["added_ms"]
        cells = [
            words,
            f"{added['direct_ms']:.2f} ms",
            f"{added['routed_ms']:.2f} ms",
            f"{interval['value']:+.2f} ms",
            f"{interval['low']:+.2f} to {interval['high']:+.2f} ms",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def how_asked(document: Document, requests: str) -> str:
    """Return how single requests were sent, and whether any answer differed.

    Args:
        document: The measurement.
        requests: What the pairs are of, such as "requests".
    """
    different = document["num_different"]
    return (
        f"{document['ttft']['num_pairs']} pairs of {requests}, each prompt asked both ways in turn, greedy, "
        f"{document['max_tokens']} tokens; "
        + (f"**{different} answers differed.**" if different else "every answer was the same both ways.")
    )
