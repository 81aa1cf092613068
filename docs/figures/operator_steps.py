"""The tables of ``benchmarks.operator_steps``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions


def operator_steps(document: Document) -> str:
    """Return one line for each form of step, with a column for each length of context."""
    contexts = list(dict.fromkeys(step["context_len"] for step in document["steps"]))
    forms: dict[tuple[bool, int], list[str]] = {}
    for step in document["steps"]:
        forms.setdefault((step["as_rows"], step["num_tokens"]), []).append(_cell(step))
    lines = [
        "| New tokens |" + "".join(f" {context_len:,} cached tokens |" for context_len in contexts),
        "|---" * (len(contexts) + 1) + "|",
        *(f"| {_name(*form)} | {' | '.join(cells)} |" for form, cells in forms.items()),
        "",
        f"Milliseconds of a step with `openvino` / `draftproof`; ratio, median (quartiles) of "
        f"{document['repetitions']} pairs of steps in turn. CPU time of the busiest thread.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def prompt_speed(document: Document) -> str:
    """Return the tokens per second of ``benchmarks.operator_steps attention``, by the tokens read before."""
    steps = [step for step in document["steps"] if not step["as_rows"]]
    lines = [
        "| Tokens in the cache | OpenVINO's attention, tokens/s | Attention of our own, tokens/s |",
        "|---|---|---|",
    ]
    for step in steps:
        speeds = (1e3 * step["num_tokens"] / step[f"{kind}_ms"] for kind in ("openvino", "draftproof"))
        lines.append(f"| {step['context_len']:,} | {' | '.join(f'{speed:.0f}' for speed in speeds)} |")
    return "\n".join([*lines, "", conditions(document["conditions"])])


def _name(as_rows: bool, num_tokens: int) -> str:
    if not as_rows:
        return f"{num_tokens} of a prompt"
    return "1 row" if num_tokens == 1 else f"{num_tokens} rows"


def _cell(step: dict[str, Any]) -> str:
    low, high = step["ratio_quartiles"]
    times = f"{step['openvino_ms']:.0f} / {step['draftproof_ms']:.0f}"
    return f"{times}; {step['ratio']:.2f} ({low:.2f} to {high:.2f})"
