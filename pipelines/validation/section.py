"""A part of the report: what was examined, what came out, and what it would have found.

Every proof of this package ends in sections; the console, the page and the JSON document show sections
and know nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail", "inconclusive", "info"]
"""``info`` is a figure that nothing is judged by."""


@dataclass(frozen=True)
class Table:
    """Text in rows.

    Attributes:
        columns: Titles.
        rows: As many cells each as there are titles.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row does not have {len(self.columns)} cells")


@dataclass(frozen=True)
class Section:
    """One part of the report.

    Attributes:
        title: What was examined.
        verdict: What came of it.
        summary: The same in a sentence or two.
        table: Figures, or None.
        power: What this would have found, and how surely; "" where nothing is judged.
        document: The same for machines, ready for JSON.
    """

    title: str
    verdict: Verdict
    summary: str
    table: Table | None = None
    power: str = ""
    document: dict[str, Any] = field(default_factory=dict)


def joint_verdict(sections: Sequence[Section]) -> Verdict:
    """``fail`` beats ``inconclusive``, and that beats ``pass``.

    Returns:
        ``fail`` where no section judges anything, too: a report that tested nothing must not pass.
    """
    verdicts = {section.verdict for section in sections}
    if "fail" in verdicts:
        return "fail"
    if "inconclusive" in verdicts:
        return "inconclusive"
    return "pass" if "pass" in verdicts else "fail"
