"""The tables of ``make drills-faults``: what a server's clients and probes noticed of each fault."""

from __future__ import annotations

from collections.abc import Sequence

from docs.figures.words import Document, conditions, times

_UNITS = {"s": "s", "ms": "ms", "mb": "MB"}


def fault_drills(document: Document) -> str:
    """Write one line per drill, with failed checks below."""
    lines = [
        "| Drill | Requests | Equal | Wrong | Hung | Lost | Errors by class | Not ready after "
        "| Ready again after | Last error after | Metrics true | Gone after |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for drill in document["drills"]:
        if not drill["requests"]:
            continue
        errors = ", ".join(f"{count:,} `{name}`" for name, count in drill["errors"].items())
        cells = [
            drill["drill"],
            f"{drill['requests']:,}",
            f"{drill['equal']:,}",
            *(f"**{drill[name]}**" if drill[name] else "0" for name in ("wrong", "hung", "lost")),
            errors or "-",
            *(_seconds(drill[name]) for name in ("not_ready_s", "ready_s", "last_error_s")),
            {True: "yes", False: "**no**", None: "-"}[drill["metrics_are_true"]],
            _seconds(drill["gone_s"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    failed = [
        f"- **{drill['drill']}: failed**: {fault}"
        for drill in document["drills"]
        for fault in drill["faults"]
    ]
    lines += ["", *_more(document["drills"]), "", *failed, *([""] if failed else [])]
    lines.append(
        f"{document['num_questions']} questions, greedy and seeded, half of them over gRPC and half over "
        "HTTP; every finished answer is compared with the target's own. Times count from "
        f"the fault; readiness is polled every 20 ms. The program took {document['seconds']} s."
    )
    return "\n".join([*lines, "", conditions(document["conditions"])])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{times(value, 1, 2)} s"


def _more(drills: Sequence[Document]) -> list[str]:
    """Say what only one drill counts."""
    return [
        f"- {drill['drill']}: {', '.join(_figure(name, value) for name, value in drill['figures'].items())}"
        for drill in drills
        if drill["figures"]
    ]


def _figure(name: str, value: float) -> str:
    words, _, unit = name.rpartition("_")
    if unit in _UNITS:
        return f"{words.replace('_', ' ')} {value:.1f} {_UNITS[unit]}"
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:.2f}"
    return f"{name.replace('_', ' ')} {number}"
