"""Tests that every faulty variant is rejected, and by which check: pytest tests/exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from tests.exact.branching import Branching
from tests.exact.cases import CASES, RULES
from tests.exact.checks import (
    CHECKS,
    Explored,
    acceptance_is_that_of_theory,
    explore,
    law_is_that_of_the_reference,
    law_is_that_of_the_target_alone,
    proposals_follow_the_draft,
    rounds_count_what_happened,
    target_decides,
)
from tests.exact.faulty_variants import VARIANTS
from tests.exact.real_noise import an_answer_can_be_had_again, coin_and_draws_are_independent


@dataclass(frozen=True)
class Enumerated:
    """A check of every path of a case under a rule."""

    check: Callable[[Explored], None]
    rule: str
    case: str
    anew: bool = False

    def __str__(self) -> str:
        return f"{self.check.__name__}, {self.rule}, {self.case}"


ALONE, REFERENCE = law_is_that_of_the_target_alone, law_is_that_of_the_reference
PROPOSALS, ACCEPTANCE = proposals_follow_the_draft, acceptance_is_that_of_theory

REJECTED_BY: dict[str, list[Enumerated | Callable[[], None]]] = {
    "shared noise with the ratio rule": [Enumerated(ALONE, "ratio", "K=1")],
    "u fixed at 0": [Enumerated(ALONE, "ratio", "K=1")],
    "inverted ratio": [Enumerated(ALONE, "ratio", "K=1")],
    "no residual": [Enumerated(ALONE, "ratio", "K=1")],
    "q from raw logits": [Enumerated(ALONE, "ratio", "temperature 0.6")],
    "argmax that ignores temperature": [
        Enumerated(REFERENCE, "coupled", "temperature 1"),
        Enumerated(ALONE, "ratio", "temperature 1"),
    ],
    "off by one position": [Enumerated(ALONE, "ratio", "temperature 1")],
    "bonus token from the draft": [
        Enumerated(ALONE, "ratio", "K=3, with bonus token"),
        Enumerated(ALONE, "coupled", "K=3, with bonus token"),
    ],
    "reseeding per token": [
        Enumerated(REFERENCE, "coupled", "temperature 1"),
        Enumerated(REFERENCE, "ratio", "temperature 1"),
    ],
    # Under both rules the draft may propose anything: the answers stay right, the proposals are wrong.
    "a draft cache one token behind after full acceptance": [
        Enumerated(PROPOSALS, "ratio", "K=1, twice", anew=True),
        Enumerated(PROPOSALS, "coupled", "K=1, twice", anew=True),
    ],
    "penalties applied to one side only": [Enumerated(ALONE, "ratio", "presence penalty")],
    "a draft that takes the argmax whatever the temperature": [Enumerated(ALONE, "ratio", "K=1")],
    "temperature forgotten": [Enumerated(REFERENCE, rule, "temperature 0.6") for rule in RULES],
    "recovered token drawn with the draft's noise": [Enumerated(ALONE, "ratio", "K=1")],
    "target's noise off by one position": [
        Enumerated(ALONE, "coupled", "K=1"),
        Enumerated(target_decides, "coupled", "K=1"),
        Enumerated(ACCEPTANCE, "coupled", "K=1"),
    ],
    "end token never proposed to the ratio rule": [
        Enumerated(ALONE, "ratio", "end token proposed by a draft that likes it")
    ],
    "penalties that do not see the round's own tokens": [
        Enumerated(ALONE, rule, "frequency penalty") for rule in RULES
    ],
    "min_tokens counted anew in every round": [
        Enumerated(ALONE, rule, "min_tokens, end token likely") for rule in RULES
    ],
    # An output that ends with an accepted stop word has no token drawn by the target.
    "every token but the last counted as accepted": [
        Enumerated(rounds_count_what_happened, rule, "stop words") for rule in RULES
    ],
    "coin made of the draft's noise": [coin_and_draws_are_independent],
    "one stream for all noise": [coin_and_draws_are_independent],
    # No distribution changes; only the acceptance shows that the noise is no longer shared.
    "a new seed for every token": [an_answer_can_be_had_again, Enumerated(ACCEPTANCE, "coupled", "K=1")],
}


def _name(check: Enumerated | Callable[[], None]) -> str:
    return str(check) if isinstance(check, Enumerated) else check.__name__


def _explored(case: str, rule: str, anew: bool) -> Explored:
    with pytest.MonkeyPatch.context() as patched:
        return explore(Branching().install(patched), CASES[case], rule, anew=anew)


_explored_in_the_real_code = cache(_explored)


def _passes(check: Enumerated | Callable[[], None], explored: Callable[..., Explored] = _explored) -> bool:
    if not isinstance(check, Enumerated):
        subject, arguments = check, ()
    else:
        subject, arguments = check.check, (explored(check.case, check.rule, check.anew),)
    try:
        subject(*arguments)
    except AssertionError as rejection:
        print(f"{_name(check)}: {rejection}")
        return False
    return True


CONTROLS = [(name, check) for name, checks in REJECTED_BY.items() for check in checks]


@pytest.mark.parametrize(
    ("name", "check"), CONTROLS, ids=[f"{name} - {_name(check)}" for name, check in CONTROLS]
)
def test_a_faulty_variant_is_rejected(
    monkeypatch: pytest.MonkeyPatch, name: str, check: Enumerated | Callable[[], None]
) -> None:
    assert _passes(check, _explored_in_the_real_code), "the check rejects the real code"
    VARIANTS[name](monkeypatch)
    assert not _passes(check)


def test_every_faulty_variant_has_a_check_that_rejects_it() -> None:
    assert REJECTED_BY.keys() == VARIANTS.keys()
    assert all(REJECTED_BY.values())


def test_every_check_rejects_something() -> None:
    rejecting = {check.check for _, check in CONTROLS if isinstance(check, Enumerated)}
    assert {*CHECKS, target_decides} == rejecting
