"""Sections of a report: subject, verdict, figures and power.

Proofs and rollouts produce sections; terminal, page and JSON document render them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Verdict = Literal["pass", "fail", "inconclusive", "info"]
"""``info`` is for figures that are not judged."""


class Judged(Protocol):
    """What has a verdict."""

    @property
    def verdict(self) -> Verdict:
        """The verdict."""


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        columns: Titles of the columns.
        rows: Rows, with one cell per column.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row does not have {len(self.columns)} cells")

    @classmethod
    def of(cls, records: Sequence[Mapping[str, object]]) -> Table | None:
        """Make a table of records with the same keys, which are its titles; None without records."""
        if not records:
            return None
        titles = tuple(key.replace("_", " ") for key in records[0])
        return cls(titles, tuple(tuple(map(_cell, record.values())) for record in records))

    def lines(self) -> list[str]:
        """Render titles, a rule and the rows; the first column is left-aligned, the others right-aligned."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        titles, *rows = (
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (self.columns, *self.rows)
        )
        return [titles, "-" * len(titles), *rows]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)


@dataclass(frozen=True)
class Section:
    """One section of a report.

    Attributes:
        title: Subject of the section.
        verdict: Verdict.
        summary: Verdict and its reasons in a sentence or two.
        table: Figures, or None.
        power: Faults that would have been detected, with probabilities; "" if nothing is judged.
        document: Figures for machines, ready for JSON.
        example: Lines that are shown as they are; "" for none.
    """

    title: str
    verdict: Verdict
    summary: str
    table: Table | None = None
    power: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    example: str = ""


def joint_verdict(judged: Sequence[Judged]) -> Verdict:
    """Combine verdicts: ``fail`` overrides ``inconclusive``, which overrides ``pass``.

    Returns:
        The joint verdict; ``fail`` if nothing has one, because a report without tests must not pass.
    """
    verdicts = {each.verdict for each in judged}
    if "fail" in verdicts:
        return "fail"
    if "inconclusive" in verdicts:
        return "inconclusive"
    return "pass" if "pass" in verdicts else "fail"
