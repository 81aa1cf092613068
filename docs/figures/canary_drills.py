"""The table of ``make drills``: how each rollout ended, and what its clients noticed."""

from __future__ import annotations

from docs.figures.words import Document, conditions

_ENDED = {"promoted": "promoted", "rolled_back": "rolled back"}


def drills(document: Document) -> str:
    """Write one line per drill, with failed checks below."""
    lines = [
        "| Candidate | Ended | Decided in | Client requests until then (at most) | Seconds "
        "| Requests of the drill | By another arm | Lost | Wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    failed = []
    for drill in document["drills"]:
        cells = [
            drill["drill"],
            _ENDED.get(drill["phase"], drill["phase"]),
            drill["decided_in"],
            f"{drill['num_requests']:,} ({drill['most_requests']:,})",
            f"{drill['seconds']:.0f}",
            f"{drill['num_asked']:,}",
            f"{drill['num_fallbacks']:,}",
            *(f"**{count}**" if count else "0" for count in (drill["num_lost"], drill["num_wrong"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
        failed += [f"- **{drill['drill']}: failed**: {each}" for each in drill["faults"]]
    lines += ["", *failed, *([""] if failed else [])]
    lines.append(
        f"{document['num_clients']} clients stream without a pause. They repeat {document['num_prompts']} "
        "prompts, greedily and with seeds. Every answer is compared with the target's own. "
        f"Draft length: {document['draft_length']}. The result file has the plan and the limits."
    )
    return "\n".join([*lines, "", conditions(document["conditions"])])
