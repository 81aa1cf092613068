"""The report as one page that needs nothing else: no script, no style sheet, no font from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from pipelines.validation.report import Report
from pipelines.validation.section import joint_verdict

_TEMPLATES = Path(__file__).resolve().parent / "page"


def as_html(report: Report, conditions: dict[str, Any]) -> str:
    """Make the page; every text is escaped, for prompts and answers are anything.

    Args:
        report: What is shown.
        conditions: From ``pipelines.conditions``.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("verify.html").render(
        verdict=joint_verdict(report.sections),
        report=report,
        conditions=conditions,
    )
