"""Show a report of any form of ``draftproof verify``: as text, as a page, and as a last line of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.section import joint_verdict
from pipelines.program import EXIT_CODES
from pipelines.validation.html_page import as_html
from pipelines.validation.report import Report, as_document, as_text


def show(report: Report, conditions: dict[str, Any], page: Path, *, printed: str = "") -> int:
    """Show a report; returns the exit code of its verdict.

    Args:
        report: The report.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
        page: File that gets the page.
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
    print(json.dumps(as_document(report, conditions)))
    return EXIT_CODES[verdict]
