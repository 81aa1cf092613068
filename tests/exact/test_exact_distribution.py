"""Tests of the distribution of answers, with all outcomes enumerated: pytest tests/exact.

Everything between the random primitives is the real code: loop, executors, sampler, acceptance rules.
Probabilities are exact fractions and compared with ==.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest

from pipelines.speculation.request import Output
from tests.exact.branching import Branching
from tests.exact.cases import CASES, END_ID, FOUR, RULES, Case
from tests.exact.checks import (
    CHECKS,
    explore,
    law_is_that_of_the_target_alone,
    rounds_count_what_happened,
    target_decides,
)
from tests.exact.engines import make_executor, run_at_once
from tests.exact.reference import Answer, law_of_target_alone

# One value of each parameter that changes the distribution, as arguments of Case.
PROCESSORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({"temperature": 0.7}, {}),
    "top_k": ({"top_k": 3}, {}),
    "top_p": ({"top_p": 0.85}, {}),
    "min_p": ({"min_p": 0.15}, {}),
    "repetition_penalty": ({"repetition_penalty": 1.6}, {}),
    "presence_penalty": ({"presence_penalty": 0.8}, {}),
    "frequency_penalty": ({"frequency_penalty": -0.7}, {}),
    "min_tokens": ({"min_tokens": 2}, {}),
    "bad_words": ({}, {"bad_words": (b"ab", b"aaa")}),
    "stop_words": ({}, {"stop_words": (b"bba", b"aa")}),
    "logit_bias": ({"logit_bias": ((END_ID, 0.6), (1, -0.9))}, {}),
}


@pytest.fixture
def branching(monkeypatch: pytest.MonkeyPatch) -> Branching:
    return Branching().install(monkeypatch)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CASES)
def test_answers_have_the_targets_own_distribution(branching: Branching, name: str, rule: str) -> None:
    explored = explore(branching, CASES[name], rule)
    for check in CHECKS:
        check(explored)
    if rule == "coupled":
        target_decides(explored)


# That the target decides alone under the coupled rule is shown below, for any pair of parameters.
@pytest.mark.parametrize("rule", [pytest.param("coupled", marks=pytest.mark.long), "ratio"])
@pytest.mark.parametrize("names", [*combinations(PROCESSORS, 2)], ids=" and ".join)
def test_any_two_parameters_together_keep_the_distribution(
    branching: Branching, names: tuple[str, str], rule: str
) -> None:
    (sampling, request), (more_sampling, more_request) = (PROCESSORS[name] for name in names)
    case = Case({**sampling, **more_sampling}, {**request, **more_request}, FOUR, "reversed", max_tokens=3)
    explored = explore(branching, case, rule)
    for check in CHECKS:
        check(explored)


@pytest.mark.parametrize("name", CASES)
def test_under_the_coupled_rule_the_target_decides_alone(branching: Branching, name: str) -> None:
    """This holds for every choice of the target and every path of the draft, so for any coupling."""
    explored = explore(branching, CASES[name], "coupled", shares_noise=False)
    target_decides(explored)
    law_is_that_of_the_target_alone(explored)
    rounds_count_what_happened(explored)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["temperature 1", "everything", "K=1, twice"])
def test_ways_gone_from_the_beginning_have_the_same_probabilities(
    branching: Branching, name: str, rule: str
) -> None:
    """Enumerating engine calls once, on warm executors, hides nothing."""
    anew = explore(branching, CASES[name], rule, anew=True)
    assert anew.law == explore(branching, CASES[name], rule).law
    for check in CHECKS:
        check(anew)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["K=3, with bonus token", "everything", "one-token prompt"])
def test_a_verification_right_after_the_prompt_keeps_the_distribution(
    branching: Branching, name: str, rule: str
) -> None:
    """A client of the engines may send such a verification: all known tokens are prompt, read in one chunk.

    The first logits then come without those of the draft tokens. The reference completes what the
    verification left undecided.
    """
    case = CASES[name]
    request = case.whole_request()
    request = replace(request, max_tokens=case.num_draft_tokens + 1)
    uses_ratio = rule == "ratio"
    wanted = replace(
        request,
        max_tokens=case.num_draft_tokens,
        independent_noise=uses_ratio,
        return_generation_logits=uses_ratio,
    )
    branching.owner = ""

    def run() -> Output:
        draft = make_executor(case.draft_table, case.vocabulary, "draft")
        target = make_executor(case.target_table, case.vocabulary, "target")
        proposal = run_at_once(draft.complete(wanted))
        verification = replace(
            request, draft_input_ids=proposal.token_ids, max_tokens=len(proposal.token_ids) + 1
        )
        if len(proposal.token_ids):
            verification = replace(verification, draft_logits=proposal.generation_logits)
        return run_at_once(target.complete(verification))

    law: defaultdict[Answer, Fraction] = defaultdict(Fraction)
    for outcome in branching.outcomes({}, run):
        token_ids = tuple(outcome.result.token_ids.tolist())
        if outcome.result.finish_reason == "stop" or len(token_ids) == request.max_tokens:
            law[token_ids, outcome.result.finish_reason] += outcome.probability
        else:
            rest = law_of_target_alone(case.target_table, request, case.vocabulary.bytes_of, token_ids)
            for answer, probability in rest.items():
                law[answer] += outcome.probability * probability
    assert law == law_of_target_alone(case.target_table, request, case.vocabulary.bytes_of)


@pytest.mark.parametrize("rule", RULES)
def test_the_enumeration_meets_rejection_bonus_and_noise_used_twice(branching: Branching, rule: str) -> None:
    """Make sure that the cases of the other tests reach the situations they are about."""
    explored = explore(branching, CASES["K=3, with bonus token"], rule)
    kept = {(part.num_draft_tokens, part.num_accepted_tokens) for way in explored.ways for part in way.rounds}
    assert {(3, 0), (3, 1), (3, 2), (3, 3)} <= kept
    drafted = [
        [draw.position for call in way.calls if call.role == "draft" for draw in call.draws]
        for way in explored.ways
    ]
    assert any(len(set(positions)) < len(positions) for positions in drafted)
    proposals = {call.token_ids for way in explored.ways for call in way.calls if call.role == "draft"}
    assert any(END_ID in proposal for proposal in proposals) == (rule == "ratio")
