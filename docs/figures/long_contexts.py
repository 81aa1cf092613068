"""The table of ``benchmarks.long_contexts``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions

_ALONE = "target alone"


def long_contexts(document: Document) -> str:
    """Return one line for each attention and length of prompt."""
    arms = [arm for arm in document["cells"][0]["arms"] if arm != _ALONE]
    heads = " | ".join("Adaptive" if arm == "adaptive" else f"`num_draft_tokens` {arm[2:]}" for arm in arms)
    lines = [
        f"| Tokens of the prompt | `attention` | Target alone | {heads} |",
        "|---" * (len(arms) + 3) + "|",
        *(_line(cell, arms) for cell in sorted(document["cells"], key=lambda cell: cell["context_len"])),
        "",
        "Target alone: CPU time of a token, ms. Others: **times faster** (95 % interval); share of accepted "
        f"draft tokens; tokens per round. One request, greedy, {document['max_tokens']} tokens, "
        f"{document['num_texts']} texts of held-out code, after both models have read the prompt. CPU time "
        "of the busiest thread in steps, and of the loop between them. Every answer was the target's own.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _line(cell: dict[str, Any], arms: list[str]) -> str:
    found = cell["arms"]
    cells = [f"{found[_ALONE]['ms_per_token']:.0f}", *(_faster(found[arm]) for arm in arms)]
    return f"| {cell['context_len']:,} | `{cell['attention']}` | {' | '.join(cells)} |"


def _faster(arm: dict[str, Any]) -> str:
    ratio = arm["ratio_to_target"]
    accepted = arm["num_accepted"] / max(arm["num_drafted"], 1)
    return (
        f"**{ratio['value']:.2f}** ({ratio['low']:.2f} to {ratio['high']:.2f}); {accepted:.2f}; "
        f"{arm['num_tokens'] / arm['num_rounds']:.2f}"
    )
