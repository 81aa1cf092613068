"""Lists the subcommands of ``draftproof``."""

from __future__ import annotations

from pipelines.__main__ import PROGRAMS


def commands() -> str:
    """Return a table of the subcommands."""
    rows = (f"| `draftproof {name}` | {text[0].upper()}{text[1:]} |" for name, (_, text) in PROGRAMS.items())
    return "\n".join(["| Command | What it does |", "|---|---|", *rows])
