"""Render the report of a proof as text, as a page and as JSON, with the first differences side by side."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.section import Section, Table, joint_verdict
from pipelines.program import EXIT_CODES


@dataclass(frozen=True)
class Side:
    """One token of one answer; all None or "" after its end.

    Attributes:
        token_id: Id of the token.
        text: Text of the token; "" without a vocabulary.
        log_prob: Log probability, or None if the answer has none.
    """

    token_id: int | None
    text: str
    log_prob: float | None


@dataclass(frozen=True)
class Line:
    """One output position.

    Attributes:
        position: Output position, from 0.
        expected: Token of the target alone.
        actual: Token of the other answer.
    """

    position: int
    expected: Side
    actual: Side


@dataclass(frozen=True)
class SideBySide:
    """A finding in a form for people.

    Attributes:
        asked: Description of the pass.
        prompt_id: Name of the prompt.
        prompt: Text that was sent.
        parameters: Other parameters of the request.
        what: Sentence that describes the difference and its size.
        common: Common start of both answers as text, or as token ids.
        lines: Lines from the first difference on; empty if there is only one answer, or if the difference is
            in the prompt's log probabilities.
        alternatives: Log probabilities of the target's likeliest tokens at the first difference.
    """

    asked: str
    prompt_id: str
    prompt: str
    parameters: str
    what: str
    common: str
    lines: tuple[Line, ...]
    alternatives: tuple[Side, ...]


_WIDTH = 110
_PAGE = Path(__file__).with_name("verify.html")


@dataclass(frozen=True)
class Report:
    """Content of the report.

    Attributes:
        sections: Sections in the order in which they are shown.
        divergences: First few answers that differ, side by side.
        num_divergences: Number of all answers that differ.
    """

    sections: tuple[Section, ...]
    divergences: tuple[SideBySide, ...] = ()
    num_divergences: int = 0


def as_text(section: Section) -> str:
    """Render a section as lines of text."""
    verdict = "" if section.verdict == "info" else f": {section.verdict.upper()}"
    parts = [f"\n{section.title}{verdict}", *textwrap.wrap(section.summary, _WIDTH)]
    if section.table is not None and section.table.rows:
        parts += table_lines(section.table)
    return "\n".join([*parts, *textwrap.wrap(section.power, _WIDTH)])


def table_lines(table: Table) -> list[str]:
    """Render titles, a rule and the rows; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    return [
        table_line(table.columns, widths),
        "  ".join("-" * width for width in widths),
        *(table_line(row, widths) for row in table.rows),
    ]


def table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Render one row with the first cell left-aligned and the others right-aligned."""
    first, *others = (
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def as_document(report: Report, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the report ready for JSON, without tables, because ``figures`` contains their values."""
    return {
        "verdict": joint_verdict(report.sections),
        "sections": [
            {
                "title": section.title,
                "verdict": section.verdict,
                "summary": section.summary,
                "power": section.power,
                "figures": section.document,
            }
            for section in report.sections
        ],
        "conditions": conditions,
    }


def as_html(report: Report, conditions: dict[str, Any]) -> str:
    """Render the page, which needs no other file; texts are escaped: prompts and answers may contain HTML.

    Args:
        report: Report to render.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
    """
    page = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_PAGE.read_text(encoding="utf-8"))
    return page.render(verdict=joint_verdict(report.sections), report=report, conditions=conditions)


def add_report_options(parser: argparse.ArgumentParser, page: str) -> None:
    """Add ``--html`` and ``--json``."""
    parser.add_argument("--html", type=Path, help=f"page for the report (default: {page})")
    parser.add_argument("--json", action="store_true", help="print the report as the last line, JSON")


def show(report: Report, conditions: dict[str, Any], page: Path, *, as_json: bool, printed: str = "") -> int:
    """Show a report; returns the exit code of its verdict.

    Args:
        report: The report.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
        page: File that gets the page.
        as_json: Whether the last line is the report as JSON.
        printed: Title of a section that was printed while it was made.
    """
    for section in report.sections:
        if section.title != printed:
            print(as_text(section))
    for found in report.divergences:
        print(f"\nprompt {found.prompt_id}, {found.asked}: {found.what}")
    write_whole(page, as_html(report, conditions))
    verdict = joint_verdict(report.sections)
    print(f"\n{verdict.upper()}; wrote the report to {page}")
    if as_json:
        print(json.dumps(as_document(report, conditions)))
    return EXIT_CODES[verdict]
