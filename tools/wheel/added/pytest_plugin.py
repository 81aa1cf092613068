"""A plugin of pytest: the fixture ``same_answers`` fails a test unless a server answers as a baseline does.

pytest loads it in every environment that has the wheel, so it imports no package of the extra ``verify``
before a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def same_answers() -> Callable[..., dict[str, Any]]:
    """Return ``check``: ``same_answers("http://127.0.0.1:8000", "baseline.json.gz")``."""
    return check


def check(
    against: str,
    baseline: str | Path,
    *,
    model: str = "",
    key_file: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    page: str | Path | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Compare a server with a baseline.

    Args:
        against: Address of the server.
        baseline: File that ``draftproof verify --control URL --record FILE`` wrote.
        model: Model to ask; "" for the only one.
        key_file: File with the API key; None for that in ``DRAFTPROOF_AGAINST_KEY``, if any.
        fields: Fields of each request, such as a switch of speculation.
        page: File that gets the report as a page; None for none.
        timeout_s: Longest silence of the server; None for several times the longest answer of the baseline.

    Returns:
        The report, ready for JSON.

    Raises:
        pytest.fail.Exception: The verdict is not "pass", or there is none; the message says why.
    """
    __tracebackhide__ = True
    from pipelines.atomic_file import write_whole
    from pipelines.errors import DraftproofError
    from pipelines.validation.openai.baseline import read_baseline
    from pipelines.validation.openai.runs import Run
    from pipelines.validation.openai.server.endpoint import CANDIDATE_KEY, Endpoint, read_key
    from pipelines.validation.report import as_document, as_html, as_text

    key = None if key_file is None else Path(key_file)
    run = Run(["--against", against, "--baseline", str(baseline)], timeout_s)
    try:
        endpoint = Endpoint.of(against, model, read_key(key, CANDIDATE_KEY), fields or {})
        sections, conditions = run.compare_with_baseline(*read_baseline(Path(baseline)), endpoint)
    except DraftproofError as error:
        pytest.fail(f"no verdict: {error}", pytrace=False)
    if page is not None:
        write_whole(Path(page), as_html(sections, conditions))
    document = as_document(sections, conditions)
    if document["verdict"] != "pass":
        reasons = [as_text(section) for section in sections if section.verdict not in ("pass", "info")]
        pytest.fail(f"{document['verdict']}: {against} beside {baseline}\n{''.join(reasons)}", pytrace=False)
    return document
