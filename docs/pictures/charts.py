"""Draws recorded speeds beside those of other engines.

The picture is SVG, with a background of its own and in the reader's colour scheme, so it is readable wherever
it is shown: in README, on the site, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

_WIDTH = 640
_STYLE = """
  :root { --page: #ffffff; --text: #1f2328; --dim: #59636e; --accepted: #1a7f37; --other: #8c959f; }
  @media (prefers-color-scheme: dark) {
    :root { --page: #0d1117; --text: #e6edf3; --dim: #9198a1; --accepted: #56d364; --other: #6e7681; }
  }
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--text); }
  .small { font-size: 12px; } .bold { font-weight: 600; } .end { text-anchor: end; }
  .page { fill: var(--page); } .dim { fill: var(--dim); }
  .ours { fill: var(--accepted); } .others { fill: var(--other); }
"""
_BARS_LEFT, _BARS_RIGHT, _BARS_TOP, _BAR, _GAP = 250, 590, 50, 20, 14


def _name(arm: dict[str, Any], titles: dict[str, str]) -> str:
    kind = "target alone" if arm["num_draft_tokens"] == 0 else "with the draft"
    return f"{titles.get(arm['engine'], 'Draftproof')}, {kind}"


def _rate(arm: dict[str, Any]) -> float:
    return float(arm["output_tokens_per_s"]["median"])


def beside_peers(title: str, result: dict[str, Any]) -> str:
    """Return a bar for each engine alone and at its best draft length, by prompt set and load."""
    titles = {name: about["title"].partition(",")[0] for name, about in result["conditions"]["peers"].items()}
    arms = [arm for arm in result["arms"] if arm["prompt_set"] != "all"]
    scale = (_BARS_RIGHT - _BARS_LEFT) / max(map(_rate, arms))
    parts, told = [_text(20, 30, f"{title}: tokens per second", "bold")], []
    y = _BARS_TOP
    for (load, prompt_set), group in groupby(arms, lambda arm: (arm["num_at_once"], arm["prompt_set"])):
        best: dict[str, dict[str, Any]] = {}
        for arm in group:
            name = _name(arm, titles)
            best[name] = max(best.get(name, arm), arm, key=_rate)
        heading = f"{prompt_set}, {load} concurrent request{'s' if load > 1 else ''}"
        parts.append(_text(20, y + 14, heading, "small dim"))
        y += 22
        for name, arm in best.items():
            kind = "ours" if arm["engine"] == "draftproof" else "others"
            width = _rate(arm) * scale
            parts.append(_text(_BARS_LEFT - 10, y + 14, name, "small end"))
            place = f'x="{_BARS_LEFT}" y="{y}" width="{width:g}" height="{_BAR - 3}"'
            parts.append(f'<rect {place} rx="6" class="{kind}"/>')
            parts.append(_text(_BARS_LEFT + width + 8, y + 14, f"{_rate(arm):.0f}", "small"))
            y += _BAR
        told.append(f"{heading}: " + ", ".join(f"{name} {_rate(arm):.0f}" for name, arm in best.items()))
        y += _GAP
    return _picture(y + 6, f"{title}, tokens per second; " + "; ".join(told), parts)


def _picture(height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole file; a screen reader says the title, and later parts are painted over earlier ones."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, words: str, classes: str) -> str:
    """Return one line of text; ``y`` is its base line."""
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{escape(words)}</text>'
