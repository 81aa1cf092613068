"""The table of ``make bench-versions``."""

from __future__ import annotations

from docs.figures.words import Document, conditions


def versions(document: Document) -> str:
    """Return the ratio of speed and the difference of time to first token at each load, then start-up."""
    lines = [
        "| Protocol | Concurrent requests | Tokens/s before | after / before | TTFT before, ms "
        "| after - before, ms |",
        "|---|---|---|---|---|---|",
    ]
    for setting in document["settings"]:
        cells = [
            setting["protocol"],
            setting["num_at_once"],
            f"{setting['tokens_per_s_before']:.0f}",
            _interval(setting["tokens_per_s_ratio"], 3),
            f"{setting['ttft_ms_before']:.1f}",
            _interval(setting["ttft_ms_difference"], 2),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    starts = document["starts"]
    lines += [
        "",
        f"Start-up: {starts['start_s_before']:.2f} s before, after - before "
        f"{_interval(starts['start_s_difference'], 2)} s. Medians of {starts['num_pairs']} pairs with 95 % "
        f"intervals; {document['num_different']} answers differ.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _interval(interval: Document, digits: int) -> str:
    value, low, high = (f"{interval[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
