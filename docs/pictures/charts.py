"""Draws charts of recorded results: speed beside the target alone, and beside other engines.

They are SVG, with a background of their own and in the reader's colour scheme, so they are readable wherever
they are shown: in README, on the site, by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

_WIDTH, _HEIGHT = 640, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 620, 76, 262
_STYLE = """
  :root { --page: #ffffff; --line: #d0d7de; --text: #1f2328; --dim: #59636e; --accepted: #1a7f37;
          --other: #8c959f; }
  .s0 { --c: #1a7f37; } .s1 { --c: #0969da; } .s2 { --c: #9a6700; } .s3 { --c: #cf222e; }
  @media (prefers-color-scheme: dark) {
    :root { --page: #0d1117; --line: #3d444d; --text: #e6edf3; --dim: #9198a1; --accepted: #56d364;
            --other: #6e7681; }
    .s0 { --c: #56d364; } .s1 { --c: #58a6ff; } .s2 { --c: #e3b341; } .s3 { --c: #ff7b72; }
  }
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--text); }
  .dim { fill: var(--dim); } .small { font-size: 12px; } .bold { font-weight: 600; }
  .page { fill: var(--page); } .line { stroke: var(--line); fill: none; }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
  .series { stroke: var(--c); fill: none; stroke-width: 2; } .dot { fill: var(--c); }
  .range { stroke: var(--c); stroke-width: 1; opacity: 0.6; }
  .even { stroke: var(--text); stroke-dasharray: 5 4; }
  .ours { fill: var(--accepted); } .others { fill: var(--other); }
"""
_BARS_LEFT, _BARS_RIGHT, _BARS_TOP, _BAR, _GAP = 250, 590, 50, 20, 14


def _processor(about: dict[str, Any]) -> str:
    """Name the processor and its widest instructions, which the name alone does not tell."""
    known = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI, no AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
    widest = next((words for flag, words in known.items() if flag in about["cpu_flags"]), "")
    return f"{about['cpu']} ({widest})" if widest else str(about["cpu"])


def speed_up(pair: str, bench: dict[str, Any]) -> str:
    """Return the chart of one file of ``draftproof bench``: closed loads, adaptive draft length."""
    cells = [cell for cell in bench["cells"] if cell["load"]["kind"] == "closed"]
    loads = sorted({cell["load"]["num_at_once"] for cell in cells})
    ratios = {
        (cell["prompt_set"], cell["load"]["num_at_once"]): next(
            arm["ratio_to_target"] for arm in cell["arms"] if arm["arm"] == "adaptive"
        )
        for cell in cells
    }
    top: int = math.ceil(max(ratio["high"] for ratio in ratios.values()))
    names = list(dict.fromkeys(cell["prompt_set"] for cell in cells))

    def place_x(load: int) -> float:
        return _LEFT + 24 + (_RIGHT - _LEFT - 48) * math.log(load / loads[0]) / math.log(loads[-1] / loads[0])

    def place_y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top

    parts = [_text(20, 30, f"{pair}: times as fast as the target alone", "bold")]
    for value in range(top + 1):
        y = place_y(value)
        kind = "even" if value == 1 else "line"
        parts.append(f'<path class="{kind}" d="M{_LEFT} {y:.1f} H{_RIGHT}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{value}", "small dim end"))
    parts += [_text(place_x(load), _BOTTOM + 20, f"{load}", "small dim middle") for load in loads]
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 40, "concurrent requests", "small dim middle"))
    for index, name in enumerate(names):
        points = [(place_x(load) + 4 * index - 6, ratios[name, load]) for load in loads]
        path = " L".join(f"{x:.1f} {place_y(ratio['value']):.1f}" for x, ratio in points)
        parts.append(f'<g class="s{index}"><path class="series" d="M{path}"/>')
        for x, ratio in points:
            low, high = place_y(ratio["low"]), place_y(ratio["high"])
            parts.append(f'<path class="range" d="M{x:.1f} {low:.1f} V{high:.1f}"/>')
            parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{place_y(ratio["value"]):.1f}" r="3.5"/>')
        parts.append(f'<circle class="dot" cx="{60 + 130 * index}" cy="51" r="5"/>')
        parts.append(f"{_text(72 + 130 * index, 56, name, 'small')}</g>")
    engine, about = bench["conditions"]["engines"]["target"], bench["conditions"]
    words = (
        f"{engine['num_parameters'] / 1e6:.0f} M parameters, {engine['quantization']}, {about['num_cores']} "
        f"cores of {_processor(about)}, greedy. Bars: 95 %."
    )
    parts.append(_text(20, _HEIGHT - 10, words, "small dim"))
    title = f"{pair}, times as fast as the target alone by prompt set and concurrent requests: " + "; ".join(
        f"{name} " + ", ".join(f"{ratios[name, load]['value']:.2f} at {load}" for load in loads)
        for name in names
    )
    return _picture(_HEIGHT, title, parts)


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
