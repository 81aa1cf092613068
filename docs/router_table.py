"""What README says of ``pipelines.bench.router_cost``."""

from __future__ import annotations

from docs.words import Document, conditions

_TIMES = {"ttft": "first token", "itl": "each further token"}


def router_cost(document: Document) -> str:
    """One line per time, then the speed at several requests at once."""
    lines = [
        "| One request at a time | `generate` | `router` | Added, median | 95 % interval |",
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
    ratio, different = document["speed_ratio"], document["num_different"]
    lines += [
        "",
        f"{document['num_at_once']} at once: {ratio['value']:.2f} times the output tokens per second "
        f"({ratio['low']:.2f} to {ratio['high']:.2f}). {document['ttft']['num_pairs']} pairs of requests, "
        f"each prompt asked both ways in turn, greedy, {document['max_tokens']} tokens; "
        + (f"**{different} answers differed.**" if different else "every answer was the same both ways."),
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)
