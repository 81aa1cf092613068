"""The table of ``make drills-fleet``: what clients noticed of faults of servers, networks and disks."""

from __future__ import annotations

from collections.abc import Sequence

from docs.figures.words import Document, conditions, times


def fleet_drills(document: Document) -> str:
    """Write one line per drill."""
    heads = (
        *("Drill", "Times", "Requests", "Lost", "Wrong", "Sent again"),
        *("Interrupted streams", "Pause, median", "Longest"),
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for drill in document["drills"]:
        cells = [
            drill["drill"],
            f"{drill['rounds']}",
            f"{drill['num_requests']:,}",
            *(f"**{drill[name]}**" if drill[name] else "0" for name in ("num_lost", "num_wrong")),
            f"{drill['num_broken']}",
            f"{drill['num_interrupted']}",
            *(_seconds(drill[name]) for name in ("median_pause_s", "longest_pause_s")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"{document['num_servers']} servers with the tests' tiny pair, {document['num_front_doors']} front "
        f"doors behind HAProxy and {document['num_clients']} clients on one machine. Greedy, seeded and "
        "structured answers of up to 240 tokens, four of five streamed; text, tokens, log probabilities and "
        "finish reason are compared with the right ones. A request whose connection broke with its front "
        "door is sent again, and what had arrived must be the beginning of the right answer. Interrupted are "
        "the streams of the server that was hit which had begun. Their pause is the longest time "
        "without an event after that. A drained server finishes them, so their "
        "pauses are those of a busy machine.",
        "",
        *_conditions(document["drills"]),
    ]
    return "\n".join(lines)


def _conditions(drills: Sequence[Document]) -> list[str]:
    """Return one line for each run, with the load at the start of its first drill."""
    runs = {each["conditions"]["command"]: each for each in reversed(drills)}
    if len(runs) == 1:
        return [conditions(drills[0]["conditions"])]
    return [
        f'- From "{each["drill"]}" on: {conditions(each["conditions"])}' for each in reversed(runs.values())
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{times(value, 1, 2)} s"
