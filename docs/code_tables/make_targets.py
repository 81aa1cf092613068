"""Lists the targets and settings of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

_MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


def make_targets() -> str:
    """Return a table of targets for each heading of ``make help``."""
    lines: list[str] = []
    for line in _MAKEFILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("##@ "):
            lines += ["", f"### {line.removeprefix('##@ ')}", "", "| Target | What it does |", "|---|---|"]
        elif found := re.match(r"([a-z][a-z0-9-]*):.*?## (.*)", line):
            lines.append(f"| `make {found[1]}` | {_sentence(found[2])} |")
    return "\n".join(lines).strip()


def make_settings() -> str:
    """Return a table of the variables that a user may set."""
    lines = ["| Setting | Default | Meaning |", "|---|---|---|"]
    text = _MAKEFILE.read_text(encoding="utf-8")
    for meaning, name, default in re.findall(r"^##= (.*)\n([A-Z_]+) \?=(.*)$", text, re.MULTILINE):
        value = f"`{default.strip()}`" if default.strip() else "empty"
        lines.append(f"| `{name}` | {value} | {_sentence(meaning)} |")
    return "\n".join(lines)


def _sentence(words: str) -> str:
    return (words[0].upper() + words[1:]).replace("|", "\\|")
