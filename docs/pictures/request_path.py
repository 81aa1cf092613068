"""Draws the way of one request: the parts that it passes, and the messages between them in time."""

from __future__ import annotations

from collections.abc import Sequence

from docs.pictures import svg

_PARTS = (
    ("Client", "HTTP or gRPC", "streams text and tokens"),
    ("Gateway", "the only open ports", "checks and rewrites each request, watches Triton"),
    ("Triton 2.51", "gRPC on a Unix socket", "passes requests to models"),
    ("generate", "Python backend", "text to tokens, tokens to text"),
    ("speculative", "Python backend", "draft, verify, batch in flight"),
    ("Engines", "OpenVINO, INT8", "draft and target, in the process of speculative"),
)
_COLUMNS = 3

_LIVES = ("client", "gateway", "Triton", "generate", "speculative", "engines")
_STEPS: tuple[tuple[int, int, str], ...] = (
    (0, 1, "request, HTTP or gRPC"),
    (1, 1, "check names, types, shapes, size"),
    (1, 2, "gRPC, Unix socket"),
    (2, 3, "tensors"),
    (3, 3, "check ranges; text to token ids"),
    (3, 4, "token ids, Unix socket"),
    (4, 5, "prefill in chunks"),
    (5, 4, "logits of the first token"),
    (4, 5, "draft: k tokens"),
    (4, 5, "target: k + 1 rows"),
    (5, 4, "logits of each row"),
    (4, 4, "keep matches, add one"),
    (4, 3, "tokens of the round"),
    (3, 2, "text, tokens, counts"),
    (2, 1, "response message"),
    (1, 0, "chunk"),
)
_REPEATED = (8, 15)  # rounds until the answer ends


def architecture() -> str:
    """Return the parts of the server, in the order in which a request passes them."""
    parts, width, height, gap, below = [], 184, 96, 22, 34
    for index, (name, how, what) in enumerate(_PARTS):
        row, column = divmod(index, _COLUMNS)
        x, y = 22 + column * (width + gap), 20 + row * (height + below)
        parts.append(svg.box(x, y, width, height))
        parts.append(svg.text(x + width / 2, y + 25, name, "bold middle"))
        parts.append(svg.text(x + width / 2, y + 45, how, "small dim middle"))
        for line, words in enumerate(_wrapped(what)):
            parts.append(svg.text(x + width / 2, y + 66 + 16 * line, words, "small middle"))
        if column:
            parts.append(svg.arrow(f"M{x - gap + 2} {y + 40} H{x - 2}"))
            parts.append(svg.arrow(f"M{x - 2} {y + 56} H{x - gap + 2}"))
    last, first, middle = 22 + 2 * (width + gap) + width / 2, 22 + width / 2, 20 + height + below / 2
    parts.append(svg.arrow(f"M{last} {middle - 17} V{middle} H{first} V{middle + 15}"))
    title = "A request passes " + ", ".join(name for name, _, _ in _PARTS) + ", and its answer comes back."
    return svg.picture(640, 40 + 2 * height + below, title, parts)


def sequence() -> str:
    """Return the messages of one streamed request, from top to bottom."""
    columns, top, step = [60 + 160 * index for index in range(len(_LIVES))], 84, 34
    bottom = top + step * len(_STEPS) + 6
    parts = [svg.text(16, 30, "One streamed request", "bold")]
    for x, name in zip(columns, _LIVES, strict=True):
        parts.append(svg.box(x - 50, 44, 100, 30))
        parts.append(svg.text(x, 64, name, "bold small middle"))
        parts.append(f'<path class="line" d="M{x} 74 V{bottom}"/>')
    first, last = _REPEATED
    frame_top = top + step * first - 6
    parts.append(svg.box(14, frame_top, columns[-1] + 40, step * (last - first + 1) + 8, "round"))
    parts.append(svg.text(24, frame_top + 18, "each round", "small dim"))
    for index, (start, end, words) in enumerate(_STEPS):
        y = top + step * index + 22
        x, to_x = columns[start], columns[end]
        if start == end:
            parts.append(f'<circle class="arrow" cx="{x}" cy="{y}" r="4"/>')
            parts.append(svg.text(x + 10, y + 4, words, "small"))
            continue
        parts.append(svg.arrow(f"M{x} {y} H{to_x - 2 if to_x > x else to_x + 2}"))
        parts.append(svg.text((x + to_x) / 2, y - 5, words, "small middle"))
    style = ".round { fill: none; stroke: var(--accent); stroke-dasharray: 5 4; }"
    title = "Sequence of one request: " + "; ".join(
        f"{_LIVES[start]} to {_LIVES[end]}: {words}" for start, end, words in _STEPS
    )
    return svg.picture(columns[-1] + 70, bottom + 14, title, parts, style)


def _wrapped(words: str, longest: int = 28) -> Sequence[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) > longest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
