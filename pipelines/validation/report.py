"""Render the report of a proof as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.bench.reporting.section import Section, Table, joint_verdict
from pipelines.validation.two_answers import SideBySide

_WIDTH = 110


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

    def with_sections(self, more: Sequence[Section]) -> Report:
        """Return the report with sections appended."""
        return replace(self, sections=(*self.sections, *more))


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
