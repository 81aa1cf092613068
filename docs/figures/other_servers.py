"""The table of a comparison of two OpenAI-compatible servers, ``draftproof verify --control``."""

from __future__ import annotations

from docs.figures.words import Document

_AUDIT = "First-divergence audit: "


def other_servers(report: Document) -> str:
    """Return the verdict, one line for the control and each load of the candidate, and the conditions."""
    about = report["conditions"]
    noise, *others = report["sections"]
    arms = [section for section in others if section["title"].startswith(_AUDIT)]
    lines = [
        f"Control: {about['engines']['control']}. Candidate: {about['engines']['candidate']}. Verdict: "
        f"**{report['verdict']}**.",
        "",
        "| Answers | Prompts | Different | Of these ties | Draft tokens | Differences that are no ties |",
        "|---|---|---|---|---|---|",
        f"| control, under load and scored in one pass | {noise['figures']['prompts']} "
        f"| {noise['figures']['differ']} | - | - | - |",
    ]
    for section in arms:
        figures = section["figures"]
        drafted = figures["draft_tokens"]
        cells = [
            section["title"].removeprefix(_AUDIT),
            figures["prompts"],
            figures["prompts"] - figures["equal"],
            figures["ties"],
            "unknown" if drafted is None else f"{drafted:,}",
            f"in less than {figures['non_tie_rate_upper_bound']:.2%} of prompts",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        f"Conditions: {about['cpu']}, {about['num_cores']} cores, load {about['load_average_1min']} at the "
        f"end; {about['date'][:10]}, `{about['command']}`.",
    ]
    return "\n".join(lines)
