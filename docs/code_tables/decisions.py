"""Lists the decisions by topic, with those that a later one replaced."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "decisions"

TOPICS: dict[str, tuple[int, ...]] = {
    "Losslessness": (2, 6, 9, 10, 11, 12, 42, 57, 64, 67, 70, 72, 77),
    "Speculation": (13, 14, 16, 21, 22, 23, 33, 43, 51, 59, 61, 84, 85, 86, 88, 90, 91, 92, 93),
    "Server and models": (1, 4, 5, 7, 8, 25, 39, 40, 49, 53, 58, 62, 63, 66, 83, 87),
    "Gateway and security": (37, 38, 60, 78),
    "Engines, quantization, NVIDIA GPUs": (3, 17, 18, 19, 36, 41, 44, 45, 47, 48, 50, 54, 55, 71, 79, 82, 89),
    "Deployment": (20, 31, 65, 68, 69, 80),
    "Canary rollouts": (24, 26, 27, 28, 29, 30, 32, 34, 35, 73, 74, 75, 76, 81),
    "Configuration": (46,),
    "Measurements": (15, 52, 56),
}


def decisions() -> str:
    """Return a table for each topic.

    Raises:
        KeyError: A decision has no topic, or a topic names one that does not exist.
    """
    files = {int(path.name[:4]): path for path in sorted(_FOLDER.glob("[0-9]*.md"))}
    named = [number for numbers in TOPICS.values() for number in numbers]
    if sorted(named) != sorted(files):
        wrong = sorted(set(named) ^ set(files))
        raise KeyError(f"docs/code_tables/decisions.py: give each decision one topic: {wrong}")
    lines: list[str] = []
    for topic, numbers in TOPICS.items():
        lines += ["", f"## {topic}", "", "| Decision | Status |", "|---|---|"]
        lines += [_row(files[number]) for number in numbers]
    return "\n".join(lines).strip()


def _row(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    title = text.partition("\n")[0].lstrip("# ")
    number, name = title[:4], title[4:].lstrip(": ")
    found = re.search(r"Superseded by (\d{4})(?: (in .*|, which.*))?", text)
    status = "in force"
    if found:
        later = next(_FOLDER.glob(f"{found[1]}-*.md")).name
        scope = " in part" if found[2] and found[2].startswith("in ") else ""
        status = f"superseded{scope} by [{found[1]}]({later})"
    return f"| [{number} {name}]({path.name}) | {status} |"
