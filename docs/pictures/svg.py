"""Writes SVG pictures that are readable on a light and on a dark page, without any package.

Each picture has a background of its own and asks for the reader's colour scheme, so it is readable
wherever it is shown: in README, on the site, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
  :root { --page: #ffffff; --panel: #f6f8fa; --line: #d0d7de; --text: #1f2328; --dim: #59636e;
          --accepted: #1a7f37; --accepted-back: #dafbe1; --accent: #0969da;
          --bad: #cf222e; --other: #8c959f; }
  @media (prefers-color-scheme: dark) {
    :root { --page: #0d1117; --panel: #161b22; --line: #3d444d; --text: #e6edf3; --dim: #9198a1;
            --accepted: #56d364; --accepted-back: #12361f; --accent: #58a6ff;
            --bad: #ff7b72; --other: #6e7681; }
  }
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--text); }
  .mono { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
          white-space: pre; }
  .dim { fill: var(--dim); } .small { font-size: 12px; } .bold { font-weight: 600; }
  .accepted { fill: var(--accepted); font-weight: 600; }
  .bad { fill: var(--bad); }
  .page { fill: var(--page); } .panel { fill: var(--panel); stroke: var(--line); }
  .line { stroke: var(--line); fill: none; }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
""".strip("\n")


def picture(width: int, height: int, title: str, parts: Sequence[str], style: str = "") -> str:
    """Return a whole SVG file.

    Args:
        width: In SVG units; the picture shrinks with the page.
        height: In SVG units.
        title: What a screen reader says.
        parts: Elements, in the order in which they are painted.
        style: Rules beside the common ones.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}\n{style}</style>" if style else f"<style>\n{_STYLE}\n</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """Return one line of text; ``y`` is its base line."""
    return f'<text x="{x:g}" y="{y:g}"{_class(classes)}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, classes: str = "panel") -> str:
    """Return a rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"{_class(classes)}/>'


def _class(classes: str) -> str:
    return f' class="{classes}"' if classes else ""
