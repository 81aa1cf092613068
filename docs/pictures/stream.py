"""Draws README's first picture: an answer as it streams, with the accepted draft tokens in green."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from docs.pictures import svg

_WIDTH, _LEFT, _LINE = 640, 20, 18
_MAX_LINES = 14
_SLOWER = 12  # the animation takes so many times as long as the answer did
_STYLE = """
  @keyframes come { from { fill-opacity: 0 } to { fill-opacity: 1 } }
  @keyframes grow { from { transform: scaleX(0) } to { transform: scaleX(1) } }
  .piece { animation: come 0.05s backwards; }
  .bar { animation: grow linear backwards; transform-box: fill-box; transform-origin: left; }
  .speculative { fill: var(--accepted); } .alone { fill: var(--other); }
  @media (prefers-reduced-motion: reduce) { .piece, .bar { animation: none; } }
"""


def stream(recording: dict[str, Any]) -> str:
    """Return the picture of what ``docs.pictures.record`` recorded."""
    fast, alone = (recording["streams"][model] for model in ("generate", "generate_target"))
    lines = list(_lines(recording["prompt"], fast["pieces"]))[:_MAX_LINES]
    bottom = 62 + _LINE * len(lines)
    parts = [
        svg.box(8, 8, _WIDTH - 16, bottom - 12),
        svg.text(_LEFT, 34, "The demonstration pair", "small bold"),
        '<text x="620" y="34" class="small end"><tspan class="accepted">accepted draft tokens</tspan>'
        '<tspan class="dim">, the target\'s own tokens</tspan></text>',
    ]
    parts += [
        f'<text x="{_LEFT}" y="{60 + _LINE * index}" class="mono" xml:space="preserve">{line}</text>'
        for index, line in enumerate(lines)
    ]
    longest = max(fast["e2e_latency_s"], alone["e2e_latency_s"])
    for index, (words, kind, one) in enumerate(
        [("draft and target", "speculative", fast), ("target alone", "alone", alone)]
    ):
        y, seconds = bottom + 14 + 26 * index, one["e2e_latency_s"]
        width = 360 * seconds / longest
        parts += [
            svg.text(_LEFT, y + 13, words, "small"),
            f'<rect class="bar {kind}" x="130" y="{y}" width="{width:.1f}" height="16" rx="3" '
            f'style="animation-duration: {seconds * _SLOWER:.2f}s"/>',
            svg.text(138 + width, y + 13, f"{seconds:.2f} s, {one['num_tokens']} tokens", "small"),
        ]
    same = fast["output_ids"] == alone["output_ids"]
    parts.append(
        svg.text(
            _LEFT,
            bottom + 82,
            f"{'The same' if same else 'NOT the same'} {fast['num_tokens']} tokens from both. "
            f"{fast['num_accepted']} were drafted. One request, CPU; shown {_SLOWER} times slower.",
            "small dim" if same else "small bad",
        )
    )
    title = (
        f"One answer streams from the speculative pair in {fast['e2e_latency_s']:.2f} s; "
        f"the target alone takes {alone['e2e_latency_s']:.2f} s for the same tokens."
    )
    return svg.picture(_WIDTH, bottom + 96, title, parts, _STYLE)


def _lines(prompt: str, pieces: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines without their common indentation, as ``tspan`` elements that appear when a piece came."""
    begun = prompt.rsplit("\n", 1)[-1]
    text = begun + "".join(piece["text"] for piece in pieces)
    indented = min(len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip())
    line, hidden = f'<tspan class="dim">{escape(begun[indented:])}</tspan>', max(0, indented - len(begun))
    for piece in pieces:
        for index, words in enumerate(piece["text"].split("\n")):
            if index:
                yield line
                line, hidden = "", indented
            line += _piece(words[hidden:], piece)
            hidden = max(0, hidden - len(words))
    yield line


def _piece(words: str, piece: dict[str, Any]) -> str:
    if not words:
        return ""
    classes = "piece accepted" if piece["is_accepted"] else "piece"
    delay = f"animation-delay: {piece['at_s'] * _SLOWER:.2f}s"
    return f'<tspan class="{classes}" style="{delay}">{escape(words)}</tspan>'
