"""Draws how long a step takes by the tokens in the cache, with OpenVINO's attention and with ours."""

from __future__ import annotations

from typing import Any

from docs.pictures import svg

_WIDTH, _HEIGHT = 640, 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 600, 96, 276
_KINDS = {"openvino": "OpenVINO's attention", "draftproof": "attention of our own"}
_STYLE = """
  .openvino { --c: #9a6700; } .draftproof { --c: #0969da; }
  @media (prefers-color-scheme: dark) { .openvino { --c: #e3b341; } .draftproof { --c: #58a6ff; } }
  .series { stroke: var(--c); fill: none; stroke-width: 2; } .dot { fill: var(--c); }
  .one { stroke-dasharray: 2 4; } .some { stroke-dasharray: 8 4; }
"""
_STROKES = ("one", "some", "many")
_STEP_MS = 20


def step_times(measured: dict[str, Any]) -> str:
    """Return the chart of one file of ``benchmarks.operator_steps``: steps of rows, without prompts."""
    steps = [step for step in measured["steps"] if step["as_rows"]]
    rows = sorted({step["num_tokens"] for step in steps})
    contexts: list[int] = sorted({step["context_len"] for step in steps})
    top: float = max(step[f"{kind}_ms"] for step in steps for kind in _KINDS)

    def place_x(context_len: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * context_len / contexts[-1]

    def place_y(milliseconds: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * milliseconds / top

    parts = [svg.text(20, 30, "Milliseconds of a step of the target", "bold")]
    for value in range(0, int(top) + 1, _STEP_MS):
        parts.append(f'<path class="line" d="M{_LEFT} {place_y(value):.1f} H{_RIGHT}"/>')
        parts.append(svg.text(_LEFT - 8, place_y(value) + 4, f"{value}", "small dim end"))
    parts += [svg.text(place_x(each), _BOTTOM + 20, f"{each:,}", "small dim middle") for each in contexts]
    parts.append(svg.text((_LEFT + _RIGHT) / 2, _BOTTOM + 40, "tokens in the cache", "small dim middle"))
    for index, (kind, name) in enumerate(_KINDS.items()):
        parts.append(f'<g class="{kind}"><circle class="dot" cx="{26 + 190 * index}" cy="51" r="5"/>')
        parts.append(svg.text(38 + 190 * index, 56, name, "small"))
        for stroke, num_rows in zip(_STROKES, rows, strict=True):
            points = {
                step["context_len"]: step[f"{kind}_ms"] for step in steps if step["num_tokens"] == num_rows
            }
            path = " L".join(f"{place_x(each):.1f} {place_y(points[each]):.1f}" for each in contexts)
            parts.append(f'<path class="series {stroke}" d="M{path}"/>')
        parts.append("</g>")
    for index, (stroke, num_rows) in enumerate(zip(_STROKES, rows, strict=True)):
        x = 26 + 110 * index
        parts.append(f'<path class="series {stroke}" style="--c: var(--text)" d="M{x - 6} 77 h34"/>')
        parts.append(svg.text(x + 36, 81, "1 row" if num_rows == 1 else f"{num_rows} rows", "small"))
    about = measured["conditions"]
    words = (
        f"Recipe {about['recipe']}, {about['cpu']}, {about['num_cores']} cores. "
        "CPU time of the busiest thread."
    )
    parts.append(svg.text(20, _HEIGHT - 10, words, "small dim"))
    title = "Time of a step by tokens in the cache: " + "; ".join(
        f"{step['num_tokens']} rows after {step['context_len']} tokens {step['openvino_ms']:.0f} ms with "
        f"OpenVINO's attention, {step['draftproof_ms']:.0f} ms with ours"
        for step in steps
    )
    return svg.picture(_WIDTH, _HEIGHT, title, parts, _STYLE)
