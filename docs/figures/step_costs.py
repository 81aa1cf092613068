"""Tables of what steps cost, from results that other tables show in full."""

from __future__ import annotations

from docs.figures.words import Document, conditions

_KINDS = {"int8": "INT8", "int4": "INT4"}


def steps_by_size(document: Document) -> str:
    """Return one line for each target of ``benchmarks.rehearsal``: its size, and how fast it is read."""
    lines = [
        "| Target | Parameters | Weights | Read in a step | A step of 1 row | GB/s | 5 rows | 9 rows |",
        "|---|---|---|---|---|---|---|---|",
    ]
    entries = sorted(document.values(), key=lambda entry: entry["engines"]["target"]["weight_bytes_per_step"])
    for entry in entries:
        engine, times = entry["engines"]["target"], entry["step_ms"]["target"]
        one_ms = times["1"]["median"]
        cells = [
            entry["models"]["target"].rpartition("/")[2],
            f"{engine['num_parameters'] / 1e9:.2f} B",
            _KINDS[engine["quantization"]],
            f"{engine['weight_bytes_per_step'] / 1e9:.2f} GB",
            f"{one_ms:.0f} ms",
            f"{engine['weight_bytes_per_step'] / one_ms / 1e6:.0f}",
            *(f"{times[rows]['median'] / one_ms:.2f} times" for rows in ("5", "9")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def prompt_speed(document: Document) -> str:
    """Return the tokens per second of ``benchmarks.attention_steps``, by the tokens read before."""
    steps = [step for step in document["steps"] if not step["as_rows"]]
    lines = [
        "| Tokens in the cache | OpenVINO's attention, tokens/s | Attention of our own, tokens/s |",
        "|---|---|---|",
    ]
    for step in steps:
        speeds = (1e3 * step["num_tokens"] / step[f"{kind}_ms"] for kind in ("openvino", "draftproof"))
        lines.append(f"| {step['context_len']:,} | {' | '.join(f'{speed:.0f}' for speed in speeds)} |")
    return "\n".join([*lines, "", conditions(document["conditions"])])
