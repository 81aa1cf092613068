"""Render the report of a proof as text, as a page and as JSON."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.section import Section, joint_verdict
from pipelines.program import EXIT_CODES

_WIDTH = 110
_PAGE = Path(__file__).with_name("verify.html")


def as_text(section: Section) -> str:
    """Render a section as lines of text."""
    verdict = "" if section.verdict == "info" else f": {section.verdict.upper()}"
    parts = [f"\n{section.title}{verdict}", *textwrap.wrap(section.summary, _WIDTH)]
    parts += section.example.splitlines()
    if section.table is not None and section.table.rows:
        parts += section.table.lines()
    return "\n".join([*parts, *textwrap.wrap(section.power, _WIDTH)])


def as_document(sections: Sequence[Section], conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the report ready for JSON, without tables, because ``figures`` contains their values."""
    return {
        "verdict": joint_verdict(sections),
        "sections": [
            {
                "title": section.title,
                "verdict": section.verdict,
                "summary": section.summary,
                "power": section.power,
                "figures": section.document,
            }
            for section in sections
        ],
        "conditions": conditions,
    }


def as_html(sections: Sequence[Section], conditions: dict[str, Any]) -> str:
    """Render the page, which needs no other file; texts are escaped: answers may contain HTML.

    Args:
        sections: Sections in the order in which they are shown.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
    """
    page = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_PAGE.read_text(encoding="utf-8"))
    return page.render(verdict=joint_verdict(sections), sections=sections, conditions=conditions)


def add_report_options(parser: argparse.ArgumentParser, page: str) -> None:
    """Add ``--html`` and ``--json``."""
    parser.add_argument("--html", type=Path, help=f"page for the report (default: {page})")
    parser.add_argument(
        "--json",
        nargs="?",
        const=True,
        type=Path,
        metavar="FILE",
        help="print the report as the last line, JSON, or write it into FILE",
    )


def show(sections: Sequence[Section], conditions: dict[str, Any], page: Path, *, as_json: bool | Path) -> int:
    """Show a report; returns the exit code of its verdict.

    Args:
        sections: Sections in the order in which they are shown.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
        page: File that gets the page.
        as_json: Whether the last line is the report as JSON, or a file that gets it.
    """
    for section in (*sections[1:], *sections[:1]):  # the end of a log is what its reader sees
        print(as_text(section))
    write_whole(page, as_html(sections, conditions))
    verdict = joint_verdict(sections)
    print(f"\n{verdict.upper()}; wrote the report to {page}")
    if as_json:
        document = json.dumps(as_document(sections, conditions))
        print(document) if as_json is True else write_whole(as_json, document)
    return EXIT_CODES[verdict]
