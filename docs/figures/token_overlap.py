"""The table of ``benchmarks.token_overlap``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions


def token_overlap(document: Document) -> str:
    """Return one line for each draft: what it shares with the target, its acceptance and its speed."""
    lines = [
        "| Tokens of the draft | Share of a sample text | Accepted, greedy (length) "
        "| Accepted at temperature 0.8 (length) | Times as fast as the target alone |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(draft) for draft in document["drafts"]]
    about = document["conditions"]
    lines += [
        "",
        f"{about['prompts']['num_prompts']} prompts that calibration never sees, {document['max_tokens']} "
        f"tokens each, {document['num_draft_tokens']} draft tokens per round. All answers are those of the "
        "target alone. Acceptance: all prompts together, with 95% bootstrap intervals. Speed: greedy, one "
        "request at a time, all drafts in turn for each prompt, medians with quartiles, engines without a "
        "server.",
        "",
        conditions(about),
    ]
    return "\n".join(lines)


def _line(draft: dict[str, Any]) -> str:
    tokens = "2,048, the target's ids" if draft["num_tokens"] is None else f"{draft['num_tokens']:,}"
    speed = draft["speed_up"]
    cells = [
        tokens,
        f"{draft['share']:.0%}",
        *(_acceptance(draft[how]) for how in ("greedy", "sampled")),
        f"{speed['median']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})",
    ]
    return f"| {' | '.join(cells)} |"


def _acceptance(figures: dict[str, Any]) -> str:
    low, high = figures["acceptance_rate_interval"]
    return (
        f"{figures['acceptance_rate']:.3f}, {low:.3f} to {high:.3f} ({figures['mean_acceptance_length']:.2f})"
    )
