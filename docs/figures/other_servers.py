"""The tables of ``python -m benchmarks.other_servers``: a server of another engine, and planted faults."""

from __future__ import annotations

from docs.figures.words import Document

_AUDIT = "First-divergence audit: "


def other_server(report: Document) -> str:
    """Return the verdict, a line for the control and each load of the candidate, faults and conditions."""
    noise = report["sections"][0]["figures"]
    lines = [
        f"{_servers(report)} Verdict: **{report['verdict']}**.",
        "",
        "| Answers | Questions | Different | Of these ties | Draft tokens | Differences that are no ties |",
        "|---|---|---|---|---|---|",
        f"| control, under load or scored in one pass | {noise['prompts']} | {noise['differ']} | - | - | - |",
    ]
    for section in report["sections"]:
        if section["title"].startswith(_AUDIT):
            lines.append(f"| {' | '.join(map(str, _cells(section)))} |")
    lines += ["", *_failed(report), *_faults(report)]
    about = report["conditions"]
    when = "start" if "engine" in report else "end"
    lines.append(
        f"Conditions: {about['cpu']}, {about['num_cores']} cores, load {about['load_average_1min']} "
        f"at the {when}; {about['date'][:10]}, {_commit(about)}`{about['command']}`."
    )
    return "\n".join(lines)


def _servers(report: Document) -> str:
    if "engine" in report:
        package = f"`{report['package']}` {report['version']}"
        return f"{report['engine']}, {package}. The candidate drafts with {report['drafts']}."
    engines = report["conditions"]["engines"]  # a report of `draftproof verify` itself
    return f"Control: {engines['control']}. Candidate: {engines['candidate']}."


def _commit(about: Document) -> str:
    return f"commit {about['git_sha'][:10]}, " if about["git_sha"] else ""


def _cells(section: Document) -> list[object]:
    figures = section["figures"]
    drafted = figures["draft_tokens"]
    return [
        section["title"].removeprefix(_AUDIT),
        figures["prompts"],
        figures["prompts"] - figures["equal"],
        figures["ties"],
        "unknown" if drafted is None else f"{drafted:,}",
        f"in less than {figures['non_tie_rate_upper_bound']:.2%}",
    ]


def _failed(report: Document) -> list[str]:
    failed = [each for each in report["sections"] if each["verdict"] in ("fail", "inconclusive")]
    lines = [f"- {each['title']}: {each['verdict']}: {each['summary']}" for each in failed]
    return [*lines, ""] if lines else []


def _faults(report: Document) -> list[str]:
    if not report.get("faults"):
        return []
    lines = [
        "| Planted fault | In | Planted in answers | Verdict | Found by |",
        "|---|---|---|---|---|",
    ]
    for fault in report["faults"]:
        share = "all answers" if fault["one_in"] == 1 else f"about 1 of {fault['one_in']} prompts"
        planted = "all streams" if fault["planted"] is None else f"{fault['planted']} of {fault['answers']:,}"
        found = ", ".join(title.removeprefix(_AUDIT) for title in fault["found_by"]) or "-"
        cells = (fault["fault"], share, planted, fault["verdict"], found)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
