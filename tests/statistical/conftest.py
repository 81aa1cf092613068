"""Reports what the statistical tests tested and can detect, and counts the family."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statistical.judge import ALPHA, FAMILY_ALPHA, NUM_TESTS, POWER, Judgement

_JUDGEMENTS: list[Judgement] = []
_CONTROLS: list[str] = []


@pytest.fixture
def accept() -> Callable[[Judgement], None]:
    """Report a judgement and assert that it does not reject."""

    def check(judgement: Judgement) -> None:
        _JUDGEMENTS.append(judgement)
        assert len(_JUDGEMENTS) <= NUM_TESTS, "the family grew: raise NUM_TESTS"
        assert not judgement.is_rejected, str(judgement)

    return check


@pytest.fixture
def reject() -> Callable[[str, list[Judgement]], None]:
    """Report a faulty variant and assert that one of its judgements rejects."""

    def check(variant: str, judgements: list[Judgement]) -> None:
        seen = max(judgements, key=lambda judgement: judgement.power_seen)
        assert seen.is_rejected, f"faulty variant passed: {variant}: {'; '.join(map(str, judgements))}"
        assert seen.power_seen >= POWER, f"other seeds might let it pass: {variant}: {seen}"
        outcome = seen.outcome
        _CONTROLS.append(
            f"{variant}: {seen.name}, n={outcome.num_samples:.0f}, dof={outcome.dof}, "
            f"p={outcome.p_value:.2g}, power {seen.power_seen:.4f}"
        )

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
    if _CONTROLS:
        terminalreporter.section("faulty variants, all rejected")
    for line in _CONTROLS:
        terminalreporter.line(line)
