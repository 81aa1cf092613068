"""The bench as one page that needs nothing else: plots are SVG, without script, style sheet or font."""

from __future__ import annotations

from pathlib import Path

import jinja2

from pipelines.bench import chart
from pipelines.bench.plots import charts_of
from pipelines.bench.report import conclusion, interval, table
from pipelines.bench.results import Results
from pipelines.bench.verdicts import NEVER_BELOW

_TEMPLATES = Path(__file__).resolve().parent / "page"


def as_html(results: Results) -> str:
    """Make the page; every text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["interval"] = interval
    names = [prompt_set.name for prompt_set in results.plan.prompt_sets]
    return environment.get_template("bench.html").render(
        results=results,
        charts={name: charts_of(results, name) for name in names},
        tables={name: _tables(results, name) for name in names},
        conclusion=conclusion(results),
        never_below=NEVER_BELOW,
        frame=chart,
    )


def _tables(results: Results, prompt_set: str) -> str:
    cells = (figures for figures in results.cells if figures.cell.prompt_set.name == prompt_set)
    return "\n".join(table(figures) for figures in cells)
