"""Render the proof as one HTML page."""

from __future__ import annotations

from typing import Any

from pipelines.bench.reporting.page import render
from pipelines.bench.reporting.section import joint_verdict
from pipelines.validation.report import Report


def as_html(report: Report, conditions: dict[str, Any]) -> str:
    """Render the page.

    Args:
        report: Report to render.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
    """
    return render("verify.html", verdict=joint_verdict(report.sections), report=report, conditions=conditions)
