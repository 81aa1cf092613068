"""The table of ``benchmarks.rehearsal.long_prompt``."""

from __future__ import annotations

from docs.figures.words import Document, conditions


def long_prompt(document: Document) -> str:
    """Return one line for each way in which the server was asked, and the conditions."""
    again = document["follow_up"]
    rows = {
        "the long prompt, draft and target": document["pair"],
        "the long prompt, target alone, beside short ones": document["target_alone"],
        "the same with its answer and a question, draft and target": again["generate"],
        "the same with its answer and a question, target alone": again["generate_target"],
        "short prompts, nothing else": document["short_alone"],
        "short prompts while the long one is read": document["short_beside"],
    }
    lines = [
        "| Request | First token | Time per further token | Longest pause in an answer |",
        "|---|---|---|---|",
        *(f"| {name} | {' | '.join(_times(row))} |" for name, row in rows.items()),
        "",
        f"Prompts of {document['num_prompt_tokens']:,} tokens, and of 64; {document['num_output_tokens']} "
        f"output tokens. Short prompts: medians of {document['short_alone']['num_answers']} and "
        f"{document['short_beside']['num_answers']} answers, and the longest pause in any. All processes of "
        f"the server took {document['server_pss_mb'] / 1e3:.1f} GB (PSS) at the end.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _times(row: Document) -> tuple[str, ...]:
    return (
        f"{row['ttft_s']:,.2f} s",
        f"{1e3 * row['itl_s']:,.0f} ms",
        f"{1e3 * row['longest_pause_s']:,.0f} ms",
    )
