"""Draws the way of one request through the parts of a server."""

from __future__ import annotations

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


def _wrapped(words: str, longest: int = 28) -> list[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) > longest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
