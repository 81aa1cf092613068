"""Runs ``python -m docs.figures``, or ``make figures``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.figures.blocks import RESULTS, ROOT, pages, render
from docs.pictures.request_path import architecture, sequence
from docs.pictures.rollout_phases import rollout_phases
from docs.pictures.speed_up import speed_up
from docs.pictures.step_times import step_times
from docs.pictures.stream import stream

_FOLDER = Path("docs/pictures")
PICTURES: dict[Path, Callable[[], str]] = {
    _FOLDER / "demo.svg": lambda: stream(_read("demo-stream.json")),
    _FOLDER / "speed-up.svg": lambda: speed_up(_read("bench-demo-large.json")),
    _FOLDER / "speed-up-xeon.svg": lambda: speed_up(_read("bench-demo-large-xeon.json")),
    _FOLDER / "step-times.svg": lambda: step_times(_read("attention-steps-demo-large.json")),
    _FOLDER / "architecture.svg": architecture,
    _FOLDER / "sequence.svg": sequence,
    _FOLDER / "rollout-phases.svg": rollout_phases,
}
"""File -> what draws it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 with ``--check`` if a file is out of date."""
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description="Fill tables, draw pictures.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something would change")
    options = parser.parse_args(arguments)
    files = {page: render((ROOT / page).read_text(encoding="utf-8")) for page in pages()}
    files.update({path: draw() for path, draw in PICTURES.items()})
    exit_code = 0
    for path, wanted in files.items():
        file = ROOT / path
        if file.exists() and file.read_text(encoding="utf-8") == wanted:
            print(f"{path} is up to date")
        elif options.check:
            print(f"{path} differs from the result files or the code; run: make figures", file=sys.stderr)
            exit_code = 1
        else:
            file.write_text(wanted, encoding="utf-8")
            print(f"{path} written")
    return exit_code


def _read(name: str) -> dict[str, object]:
    document: dict[str, object] = json.loads((ROOT / RESULTS / name).read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    sys.exit(main())
