"""Render self-contained pages: no external script, style sheet or font."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jinja2

_TEMPLATES = Path(__file__).resolve().parent / "pages"


def render(template: str, filters: dict[str, Callable[..., object]] | None = None, **values: object) -> str:
    """Render a page; every text is escaped, because prompts and answers may contain HTML.

    Args:
        template: Name of a file in ``pages/``.
        filters: Functions that the template calls by name.
        values: Variables of the template; a missing one is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(template).render(**values)
