"""Render the results as one HTML page with SVG plots."""

from __future__ import annotations

from pipelines.bench.report.plots import charts_of
from pipelines.bench.report.results import Results
from pipelines.bench.report.text import conclusion, interval, table
from pipelines.bench.report.verdicts import NEVER_BELOW
from pipelines.bench.reporting import chart
from pipelines.bench.reporting.page import render


def as_html(results: Results) -> str:
    """Render the page."""
    names = [prompt_set.name for prompt_set in results.plan.prompt_sets]
    return render(
        "bench.html",
        {"interval": interval},
        results=results,
        conditions=results.conditions,
        charts={name: charts_of(results, name) for name in names},
        tables={name: _tables(results, name) for name in names},
        conclusion=conclusion(results),
        never_below=NEVER_BELOW,
        frame=chart,
    )


def _tables(results: Results, prompt_set: str) -> str:
    cells = (figures for figures in results.cells if figures.cell.prompt_set.name == prompt_set)
    return "\n".join(table(figures) for figures in cells)
