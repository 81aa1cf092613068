"""README's table of ``make drills``: how each rollout ended, and what its clients noticed."""

from __future__ import annotations

from docs.words import Document, conditions

_ENDED = {"promoted": "promoted", "rolled_back": "rolled back"}


def drills(document: Document) -> str:
    """One line per drill; what is not as it has to be is said below."""
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
        failed += [f"- **{drill['drill']}: not as it has to be**: {each}" for each in drill["faults"]]
    lines += ["", *failed, *([""] if failed else [])]
    lines.append(
        f"{document['num_clients']} clients stream all the time, {document['num_prompts']} prompts over and "
        "over, greedy and seeded; every answer is compared with the target's own, asked beforehand. "
        f"Draft length: {document['draft_length']}; plan and limits of the drills are in the result file."
    )
    return "\n".join([*lines, "", conditions(document["conditions"])])
