"""The tables of ``benchmarks.rehearsal``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions

_KINDS = {"int8": "INT8", "int4": "INT4"}


def rehearsed_builds(document: Document) -> str:
    """Return one line for each pair: how long ``make try`` took, and what memory it needed."""
    lines = [
        "| Pair | Target | Engines | Engines compiled | Calibrated | Server ready | First verified answer | "
        "Memory: compiling | Calibrating | Server |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in document.values():
        stages = {stage["name"]: stage for stage in entry["try"]["stages"]}
        compiled = [stages[role] for role in ("draft", "target")]
        cells = [
            *_names(entry),
            _gigabytes(sum(entry["engine_mb"].values())),
            f"{sum(stage['seconds'] for stage in compiled):.0f} s",
            f"{stages['calibration']['seconds']:.0f} s",
            f"{stages['start']['seconds']:.0f} s",
            f"{entry['try']['first_verified_s'] / 60:.1f} min",
            _gigabytes(max(stage["peak_mb"] for stage in compiled)),
            _gigabytes(stages["calibration"]["peak_mb"]),
            _gigabytes(entry["try"]["server_pss_mb"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_conditions(document)])


def rehearsed_speed(document: Document) -> str:
    """Return one line for each pair: times of steps, and speed beside the target alone."""
    rates = [answer["rate"] for answer in next(iter(document.values()))["answers"][1:]]
    heads = [f"Speed-up at {rate:.0%} accepted" for rate in rates]
    lines = [
        "| Pair | Target | Step of the target, ms: 1, 2, 5, 9 rows | Step of the draft, ms: 1 row | "
        f"Alone, ms per token | {' | '.join(heads)} |",
        f"|{'---|' * (5 + len(heads))}",
    ]
    for entry in document.values():
        target, draft = (entry["step_ms"][role] for role in ("target", "draft"))
        alone, *steered = entry["answers"]
        cells = [
            *_names(entry),
            ", ".join(f"{times['median']:.0f}" for times in target.values()),
            f"{draft['1']['median']:.0f}",
            _spread(alone["ms_per_token"], 0),
            *(_spread(answer["speed_up"], 2) for answer in steered),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_conditions(document)])


def steps_by_size(document: Document) -> str:
    """Return one line for each target of ``benchmarks.rehearsal``: its size, and how fast it is read."""
    lines = [
        "| Target | Parameters | Weights | Read in a step | A step of 1 row | GB/s | 5 rows | 9 rows |",
        "|---|---|---|---|---|---|---|---|",
    ]
    entries = sorted(document.values(), key=lambda entry: entry["engines"]["target"]["weight_bytes_per_step"])
    for entry in entries:
        engine, times = entry["engines"]["target"], entry["step_ms"]["target"]
        one_ms = times["1"]["median"]
        cells = [
            entry["models"]["target"].rpartition("/")[2],
            f"{engine['num_parameters'] / 1e9:.2f} B",
            _KINDS[engine["quantization"]],
            f"{engine['weight_bytes_per_step'] / 1e9:.2f} GB",
            f"{one_ms:.0f} ms",
            f"{engine['weight_bytes_per_step'] / one_ms / 1e6:.0f}",
            *(f"{times[rows]['median'] / one_ms:.2f} times" for rows in ("5", "9")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_conditions(document)])


def _names(entry: dict[str, Any]) -> list[str]:
    target, draft = (entry["models"][role].rpartition("/")[2] for role in ("target", "draft"))
    return [f"{target} with {draft}", _KINDS[entry["quantization"]["target"]]]


def _gigabytes(megabytes: float) -> str:
    return f"{megabytes / 1e3:.1f} GB"


def _spread(values: dict[str, float], digits: int) -> str:
    return f"{values['median']:.{digits}f} ({values['low']:.{digits}f} to {values['high']:.{digits}f})"


def _conditions(document: Document) -> list[str]:
    """Return the conditions of each pair."""
    lines = [""]
    for entry in document.values():
        busy = entry["step_ms"]["busy_share"]
        waited = "" if busy is None else f" Threads waited for a core {busy:.0%} of their time."
        lines.append(f"- {_names(entry)[0]}: {conditions(entry['conditions'])}{waited}")
    return lines
