"""The verdict and the tables of ``make verify``."""

from __future__ import annotations

from collections.abc import Sequence

from docs.figures.words import Document, conditions, listed, times

_EQUALITY, _DISTRIBUTION = "Equality with the target alone", "Distribution without a seed"
_COUNTS = (
    "prompts",
    "answers",
    "tokens",
    "tokens_with_log_probs",
    "prompt_tokens_with_log_probs",
    "prompts_that_diverged",
)


def verify(report: Document) -> str:
    """Return what was run, the verdicts, what was compared, and the acceptance of both rules."""
    sections = {section["title"]: section["figures"] for section in report["sections"]}
    equality = sections[_EQUALITY]
    passes = sections["Passes"]["passes"]
    asked = [entry for entry in passes if entry["model"] == "generate"]
    numbers = {entry["num_draft_tokens"] for entry in asked} - {None}
    # Files older than the adaptive draft length have only numbers.
    others = {entry["draft_length"] for entry in asked if entry["num_draft_tokens"] is None}
    lengths = _lengths(sorted(numbers), sorted(others))
    loads = sorted({entry["requests_at_once"] for entry in asked})
    verdict = {"pass": "Passed", "fail": "**Failed**", "inconclusive": "**Inconclusive**"}[report["verdict"]]
    differ = f"{equality['answers_that_differ']} answers differ"
    if equality["answers_that_differ"]:
        differ = f"**{differ}**"
    lines = [
        f"{_run(report)}. {verdict}: {equality['answers_compared']:,} answers and "
        f"{equality['tokens_compared']:,} tokens compared with the target alone, {differ}, "
        f"{equality['answers_missing']} missing; "
        f"`num_draft_tokens` {lengths}, {listed(loads)} concurrent requests, {len(asked)} passes.",
        "",
        "| Compared | Prompts | Answers | Tokens | With log probs | Prompt tokens with log probs "
        "| Prompts that diverged | A fault is seen with 95 % if it changes | with 99 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in equality["groups"]:
        cells = [group["name"], *(f"{group[count]:,}" for count in _COUNTS)]
        cells += [f"{group[rate]:.2%} of prompts" for rate in ("detectable_rate_95", "detectable_rate_99")]
        lines.append("| " + " | ".join(cells) + " |")
    for section in report["sections"]:
        is_distribution = section["title"].startswith(_DISTRIBUTION)
        if is_distribution or section["verdict"] in ("fail", "inconclusive"):
            lines += ["", f"{section['title']}: {_bold(section['verdict'])}: {section['summary']}"]
    lines += _acceptance(sections.get("Acceptance of seeded sampling, coupled and uncoupled", {}))
    return "\n".join([*lines, "", conditions(report["conditions"])])


def _acceptance(figures: Document) -> list[str]:
    if not figures.get("arms"):
        return []
    lines = [
        "",
        f"Acceptance at temperature {figures['temperature']}, same prompts and seeds, as `acceptance_rate` "
        "(`mean_acceptance_length`):",
        "",
        "| `num_draft_tokens` | coupled: shared noise | uncoupled: own noise, ratio rule |",
        "|---|---|---|",
    ]
    cells: dict[int, dict[str, str]] = {}
    for arm in figures["arms"]:
        rate, length = times(arm["acceptance_rate"], 1, 3), times(arm["mean_acceptance_length"], 1, 2)
        counts = f"{arm['total_accepted_draft_tokens']:,} of {arm['total_draft_tokens']:,}"
        cells.setdefault(arm["num_draft_tokens"], {})[arm["sampling"]] = f"{rate} ({length}), {counts}"
    for draft_length, rules in cells.items():
        lines.append(f"| {draft_length} | {rules['coupled']} | {rules['uncoupled']} |")
    return lines


def _lengths(numbers: Sequence[int], others: Sequence[str]) -> str:
    whole = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return listed([*([f"{numbers[0]} to {numbers[-1]}"] if whole else numbers), *others])


def verdict_line(report: Document) -> str:
    """Return one bullet for each section that has a verdict."""
    lines = [
        f"- {section['title']}: {_bold(section['verdict'])}: {_first(section['summary'])}."
        for section in report["sections"]
        if section["verdict"] in ("pass", "fail", "inconclusive")
    ]
    about = report["conditions"]
    run = f"{_run(report)} ({about['date'][:10]}, recipe `{about['recipe']}`): **{report['verdict']}**."
    return "\n".join([run, "", *lines])


def _run(report: Document) -> str:
    """Return which parts of ``make verify`` were run, by the sections of their report."""
    titles = [section["title"] for section in report["sections"]]
    with_distributions = any(title.startswith(_DISTRIBUTION) for title in titles)
    if _EQUALITY in titles and with_distributions:
        return "A whole run of `make verify`"
    part = "the distributions" if with_distributions else "equality"
    return f"A run of {part} alone, one of the two parts of `make verify`"


def _bold(verdict: str) -> str:
    return verdict if verdict == "pass" else f"**{verdict}**"


def _first(summary: str) -> str:
    return summary.split(". ")[0].rstrip(".")
