"""The tables of ``benchmarks.front_door``."""

from __future__ import annotations

from docs.figures.added_times import added_times, how_asked
from docs.figures.words import Document, conditions


def front_door_cost(document: Document) -> str:
    """Return one line for each time, then one for each load."""
    lines = added_times(document, "gRPC", "OpenAI's API")
    lines += [
        "",
        "| Concurrent requests | Tokens/s, beside gRPC | CPU of the front door |",
        "|---|---|---|",
    ]
    for load in document["loads"]:
        ratio = load["speed_ratio"]
        lines.append(
            f"| {load['num_at_once']} | {_ratio(ratio)} | {100 * load['cpu_share']:.1f} % of one core, "
            f"{load['cpu_us_per_token']:.0f} µs per token |"
        )
    lines += [
        "",
        how_asked(document, "single requests"),
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def structured_output(document: Document) -> str:
    """Return one line for each comparison and load."""
    compared = {
        "a guide that every text matches, beside no guide": document["guided_beside_free"],
        "a JSON schema with long fixed keys, pair beside target alone": document["pair_beside_target"],
    }
    lines = [
        "| Tokens/s of | Concurrent requests | Ratio | Acceptance | Different answers |",
        "|---|---|---|---|---|",
    ]
    for words, loads in compared.items():
        for load in loads:
            rates = [f"{rate:.2f}" if rate is not None else "none" for rate in load["acceptance_rates"]]
            ratio = _ratio(load["speed_ratio"])
            lines.append(
                f"| {words} | {load['num_at_once']} | {ratio} | {rates[0]}, {rates[1]} "
                f"| {load['num_different']} |"
            )
    lines += [
        "",
        f"Greedy; {document['free_tokens']} tokens, and at most {document['schema_tokens']} with the schema.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _ratio(interval: Document) -> str:
    return f"{interval['value']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"
