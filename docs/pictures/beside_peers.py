"""Draws the speeds of each engine from a result file of ``benchmarks.peers``."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from docs.pictures import svg

_WIDTH, _LEFT, _RIGHT = 640, 250, 590
_BAR, _GAP, _TOP = 20, 34, 50
_STYLE = """
  .ours { fill: var(--accepted); } .others { fill: var(--other); }
"""


def _name(arm: dict[str, Any], titles: dict[str, str]) -> str:
    kind = "target alone" if arm["num_draft_tokens"] == 0 else "with the draft"
    return f"{titles.get(arm['engine'], 'Draftproof')}, {kind}"


def _rate(arm: dict[str, Any]) -> float:
    return float(arm["output_tokens_per_s"]["median"])


def beside_peers(title: str, result: dict[str, Any]) -> str:
    """Return a bar for each engine alone and at its best draft length, by prompt set and load."""
    titles = {name: about["title"].partition(",")[0] for name, about in result["conditions"]["peers"].items()}
    arms = [arm for arm in result["arms"] if arm["prompt_set"] != "all"]
    scale = (_RIGHT - _LEFT) / max(map(_rate, arms))
    parts, told = [svg.text(20, 30, f"{title}: tokens per second", "bold")], []
    y = _TOP
    for (load, prompt_set), group in groupby(arms, lambda arm: (arm["num_at_once"], arm["prompt_set"])):
        best: dict[str, dict[str, Any]] = {}
        for arm in group:
            name = _name(arm, titles)
            best[name] = max(best.get(name, arm), arm, key=_rate)
        heading = f"{prompt_set}, {load} request{'s' if load > 1 else ''} at once"
        parts.append(svg.text(20, y + 14, heading, "small dim"))
        y += 22
        for name, arm in best.items():
            kind = "ours" if arm["engine"] == "draftproof" else "others"
            width = _rate(arm) * scale
            parts.append(svg.text(_LEFT - 10, y + 14, name, "small end"))
            parts.append(svg.box(_LEFT, y, width, _BAR - 3, kind))
            parts.append(svg.text(_LEFT + width + 8, y + 14, f"{_rate(arm):.0f}", "small"))
            y += _BAR
        told.append(f"{heading}: " + ", ".join(f"{name} {_rate(arm):.0f}" for name, arm in best.items()))
        y += _GAP - _BAR
    return svg.picture(_WIDTH, y + 6, f"{title}, tokens per second; " + "; ".join(told), parts, _STYLE)
