"""Prints what was tested and what the tests can see, and counts the family."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statistical.judge import ALPHA, FAMILY_ALPHA, NUM_TESTS, Judgement

_JUDGEMENTS: list[Judgement] = []
_CONTROLS: list[str] = []


@pytest.fixture
def accept() -> Callable[[Judgement], None]:
    """Reports a judgement and asserts that it does not reject."""

    def check(judgement: Judgement) -> None:
        _JUDGEMENTS.append(judgement)
        assert len(_JUDGEMENTS) <= NUM_TESTS, "the family grew: raise NUM_TESTS"
        assert not judgement.is_rejected, str(judgement)

    return check


@pytest.fixture
def reject() -> Callable[[str, list[Judgement]], None]:
    """Reports a faulty variant and asserts that one of its judgements rejects."""

    def check(variant: str, judgements: list[Judgement]) -> None:
        found = [judgement for judgement in judgements if judgement.is_rejected]
        assert found, f"faulty variant passed: {variant}: {'; '.join(map(str, judgements))}"
        best = min(found, key=lambda judgement: judgement.outcome.p_value)
        _CONTROLS.append(f"{variant}: rejected by {best}")

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The power of every test is part of its result."""
    if _JUDGEMENTS:
        terminalreporter.section("statistical tests")
        terminalreporter.line(
            f"Family-wise alpha {FAMILY_ALPHA:g}: each of {NUM_TESTS} tests rejects at p <= {ALPHA:g}. "
            "TV: smallest noncentrality for that total variation."
        )
    for line in (*map(str, _JUDGEMENTS), *_CONTROLS):
        terminalreporter.line(line)
