"""Reports what the statistical tests tested and can detect, and counts the family."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statistical.judge import ALPHA, FAMILY_ALPHA, NUM_TESTS, Judgement

_JUDGEMENTS: list[Judgement] = []


@pytest.fixture
def accept() -> Callable[[Judgement], None]:
    """Report a judgement and assert that it does not reject."""

    def check(judgement: Judgement) -> None:
        _JUDGEMENTS.append(judgement)
        assert len(_JUDGEMENTS) <= NUM_TESTS, "the family grew: raise NUM_TESTS"
        assert not judgement.is_rejected, str(judgement)

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the power of every test, which is part of its result."""
    if _JUDGEMENTS:
        terminalreporter.section("statistical tests")
        terminalreporter.line(
            f"Family-wise alpha {FAMILY_ALPHA:g}: each of {NUM_TESTS} tests rejects at p <= {ALPHA:g}. "
            "TV: smallest noncentrality for that total variation."
        )
    for judgement in _JUDGEMENTS:
        terminalreporter.line(str(judgement))
