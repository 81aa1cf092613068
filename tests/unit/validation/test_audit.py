"""Tests of the first-divergence audit: ties, non-ties and the bounds on them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.bench.reporting.section import Section
from pipelines.client import CompletionRequest, Generation
from pipelines.client.workers import Workers
from pipelines.command_line.prompts import Prompt
from pipelines.errors import EngineFailedError, ServerBusyError
from pipelines.validation.audit.arms import Arm, Audit, AuditPlan, Difference, Margin, ask_all
from pipelines.validation.audit.audit import ALPHA, judge, judge_exact
from pipelines.validation.audit.noise_floor import rate_difference_bounds, surprise, tie_limit

SCALE = 0.02


def arm(
    margins: dict[int, float | None], num_prompts: int, missing: frozenset[int] = frozenset(), **others: int
) -> Arm:
    """Return an arm that diverges from the reference at the given prompts; a margin of None is unknown."""
    differences = [
        Difference(
            str(index), "token 3", "5", "7", Margin(margins[index], "" if margins[index] else "no logits")
        )
        if index in margins
        else None
        for index in range(num_prompts)
    ]
    return Arm("arm", tuple(differences), missing, **others)


def noise_margins(rng: np.random.Generator, num_prompts: int, rate: float = 0.1) -> dict[int, float | None]:
    """Draw margins as rounding causes them: half a Gaussian at some of the prompts."""
    return {index: abs(rng.normal(0, SCALE)) + 1e-9 for index in range(num_prompts) if rng.random() < rate}


def verdict_of(noise: Arm, candidate: Arm) -> Section:
    floor, section = judge(Audit(noise, (candidate,)))
    assert floor.verdict == "info"
    return section


def test_an_equal_candidate_passes_and_the_bound_is_clopper_pearsons() -> None:
    section = verdict_of(arm({}, 300), arm({}, 300))
    assert section.verdict == "pass"
    assert section.document["non_tie_rate_upper_bound"] == pytest.approx(1 - 0.05 ** (1 / 300))
    assert "0.993" not in section.summary and "Smallest share detected with 95%: 0.99%" in section.power


def test_ties_only_pass() -> None:
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(20):
        noise = arm(noise_margins(rng, 600), 600)
        limit = tie_limit(
            [abs(p.margin.log_prob_difference or 0) for p in noise.differences if p and p.margin]
        )
        margins = {index: min(m or 0, limit) for index, m in noise_margins(rng, 600).items()}
        section = verdict_of(noise, arm(margins, 600))
        assert section.verdict != "fail", section.summary
        assert section.document["non_ties"] == 0 < section.document["ties"]
        passed += section.verdict == "pass"
    assert passed >= 17


def test_noise_as_large_as_the_targets_own_hardly_ever_fails() -> None:
    """At most two of 500 right candidates fail, although their noise differs tenfold between prompts."""
    rng = np.random.default_rng(2)
    failed = 0
    for _ in range(500):
        rate = rng.choice([0.02, 0.1, 0.3])
        scales = 10 ** rng.uniform(-1, 0, 300)
        both = []
        for _ in range(2):
            drawn = noise_margins(rng, 300, rate)
            both.append(arm({index: (m or 0) * scales[index] for index, m in drawn.items()}, 300))
        failed += verdict_of(*both).verdict == "fail"
    assert failed <= 2


def test_a_single_token_far_from_a_tie_fails() -> None:
    rng = np.random.default_rng(3)
    noise = arm(noise_margins(rng, 300), 300)
    section = verdict_of(noise, arm({**noise_margins(rng, 300), 7: 3.0}, 300))
    assert section.verdict == "fail"
    assert "a margin of 3 is beyond what noise explains" in section.summary
    assert section.table is not None and section.table.rows[0][:2] == ("7", "non-tie")


def test_a_candidate_that_differs_at_non_ties_fails_without_any_noise_to_compare_with() -> None:
    """If the target is the same in every batch, nothing excuses a difference."""
    section = verdict_of(arm({}, 300), arm(dict.fromkeys(range(0, 300, 15), 0.4), 300))
    assert section.verdict == "fail"
    assert "non-ties in more than" in section.summary


def test_ties_oftener_than_the_targets_own_fail() -> None:
    rng = np.random.default_rng(4)
    noise = arm(noise_margins(rng, 400, 0.05), 400)
    margins = dict.fromkeys(range(0, 400, 3), 0.0001)
    section = verdict_of(noise, arm(margins, 400))  # type: ignore[arg-type]
    assert section.verdict == "fail"
    assert "ties are more frequent" in section.summary
    assert section.document["non_ties"] == 0


def test_a_rise_of_ties_that_is_not_bounded_is_no_pass() -> None:
    """There are six times as many ties as with the target alone, but too few prompts for a verdict."""
    noise = arm({index: 0.01 for index in range(3)}, 300)
    section = verdict_of(noise, arm({index: 0.01 for index in range(100, 118)}, 300))
    assert section.verdict == "inconclusive"
    assert section.document["tie_rise_upper_bound"] > 0.05 and section.document["non_ties"] == 0


def test_differences_without_a_margin_are_non_ties() -> None:
    noise = arm({1: 0.01, 2: 0.02}, 300)
    broken = tuple(Difference("p", "-", "an answer", "error", None) for _ in range(30))
    section = verdict_of(noise, Arm("arm", (*broken, *[None] * 270), frozenset()))
    assert section.verdict == "fail"
    assert section.document["non_ties"] == 30


def test_unknown_margins_are_never_ties() -> None:
    rng = np.random.default_rng(5)
    noise = arm(noise_margins(rng, 300), 300)
    section = verdict_of(noise, arm({3: None, 8: None}, 300))
    assert section.verdict == "inconclusive"
    assert (section.document["ties"], section.document["unknown"]) == (0, 2)
    assert section.table is not None and section.table.rows[0][-1] == "no logits"


def test_too_few_prompts_are_inconclusive_and_the_number_needed_passes() -> None:
    section = verdict_of(arm({}, 100), arm({}, 100))
    assert section.verdict == "inconclusive"
    needed = int(section.summary.split("about ")[1].split()[0])
    assert needed == 299
    assert verdict_of(arm({}, needed), arm({}, needed)).verdict == "pass"
    assert verdict_of(arm({}, needed - 1), arm({}, needed - 1)).verdict == "inconclusive"
    one = verdict_of(arm({1: 0.01, 2: 0.02}, 300), arm({4: 0.05}, 300))
    needed = int(one.summary.split("about ")[1].split()[0])
    assert needed == 473
    assert verdict_of(arm({1: 0.01, 2: 0.02}, needed), arm({4: 0.05}, needed)).verdict == "pass"


def test_prompts_without_an_answer_and_arms_without_a_draft_are_no_pass() -> None:
    lost = verdict_of(arm({}, 400), arm({}, 400, frozenset({4})))
    assert lost.verdict == "inconclusive" and "1 prompts could not be compared" in lost.summary
    idle = verdict_of(arm({}, 400), arm({}, 400, num_drafted=0))
    assert idle.verdict == "fail" and "nothing was drafted" in idle.summary
    assert verdict_of(arm({}, 400), arm({}, 400, num_drafted=9)).verdict == "pass"
    assert verdict_of(arm({}, 2), arm({}, 2, frozenset({0, 1}))).verdict == "inconclusive"


def test_equality_excuses_no_tie() -> None:
    noise, tied = arm({1: 0.001}, 300), arm({1: 0.001}, 300)
    _, section = judge_exact(Audit(noise, (tied,)))
    assert section.verdict == "fail"
    _, section = judge_exact(Audit(noise, (arm({}, 300),)))
    assert section.verdict == "pass"
    _, section = judge_exact(Audit(noise, (arm({}, 20),)))
    assert section.verdict == "inconclusive" and "299 would" in section.summary


# Collecting the answers.


def answer(text: str = "", ids: tuple[int, ...] = (), num_drafted: int = 0) -> Generation:
    return Generation(text, ids, (), "", 0, num_drafted, 0, (), None, 0.0)


def audit_of(
    reference: Generation, candidate: Generation | Exception, margin: float = 0.5
) -> tuple[Audit, list[str]]:
    looked_up: list[str] = []

    def margin_of(prompt: str, expected: Generation, actual: Generation) -> Margin:
        looked_up.append(prompt)
        return Margin(margin)

    def ask(request: CompletionRequest, model: str) -> Generation:
        if model == "control":
            assert request.num_draft_tokens is None
            return reference
        assert (model, request.num_draft_tokens) == ("candidate", 4)
        if isinstance(candidate, Exception):
            raise candidate
        return candidate

    plan = AuditPlan((Prompt("p", "text"),), 8, "control", "candidate", (4,), 2)
    with Workers([ask, ask]) as workers:
        return ask_all(plan, workers, margin_of), looked_up


def parting_of(reference: Generation, candidate: Generation | Exception) -> Difference | None:
    audit, _ = audit_of(reference, candidate)
    assert audit.noise.differences == (None,)
    return audit.candidates[0].differences[0]


def test_the_first_difference_is_found_in_tokens_or_in_text() -> None:
    assert parting_of(answer("abc", (1, 2)), answer("abc", (1, 2))) is None
    found = parting_of(answer("abc", (1, 2, 3, 9)), answer("abd", (1, 2, 4, 8)))
    assert found == Difference("p", "token 2", "3", "4", Margin(0.5))
    found = parting_of(answer("abc", (1, 2)), answer("abcd", (1, 2, 4)))
    assert found == Difference("p", "token 2", "<end>", "4", Margin(0.5))
    found = parting_of(answer("a long beginning, then this"), answer("a long beginning, then that"))
    assert found == Difference("p", "character 25", "'ing, then this'", "'ing, then that'", Margin(0.5))


def test_another_text_of_equal_tokens_is_no_matter_of_margins() -> None:
    audit, looked_up = audit_of(answer("abc", (1, 2)), answer("ab", (1, 2)))
    assert audit.candidates[0].differences == (Difference("p", "text", "abc", "ab", None),)
    assert looked_up == []


def test_an_error_counts_against_the_candidate_unless_it_only_says_that_there_is_no_answer() -> None:
    found = parting_of(answer("abc"), EngineFailedError("the engine broke"))
    assert found is not None and found.actual == "error: the engine broke" and found.margin is None
    audit, _ = audit_of(answer("abc"), ServerBusyError("the queue is full"))
    assert audit.candidates[0].differences == (None,) and audit.candidates[0].missing == {0}


def test_drafted_tokens_are_counted() -> None:
    audit, _ = audit_of(answer("abc"), answer("abc", num_drafted=7))
    assert audit.candidates[0].num_drafted == 7 and audit.noise.num_drafted is None


# The statistics.


def test_a_tie_is_what_a_further_noise_margin_hardly_exceeds() -> None:
    assert tie_limit([]) == 0.0
    assert tie_limit([0.3, 0.1]) == 0.6
    assert tie_limit([float(rank) for rank in range(1, 200)]) == 2 * 198.0
    rng = np.random.default_rng(6)
    exceeded = 0
    for _ in range(4000):
        margins = np.abs(rng.normal(size=150))
        exceeded += margins[0] > tie_limit(list(margins[1:])) / 2
    assert exceeded / 4000 <= 0.015


@pytest.mark.parametrize("num_margins", [1, 3, 30])
def test_a_surprise_is_as_rare_as_stated_for_the_heaviest_tail_of_margins(num_margins: int) -> None:
    rng = np.random.default_rng(7)
    drawn = SCALE * rng.exponential(size=(20_000, num_margins + 1)) ** 2
    surprised = [surprise(row[0], list(row[1:])) <= 0.01 for row in drawn]
    assert np.mean(surprised) == pytest.approx(0.01, abs=0.003)
    assert surprise(5.0, []) == 1.0


def test_bounds_of_a_rates_rise_hold_as_often_as_stated() -> None:
    rng = np.random.default_rng(8)
    for first_only, second_only in ((0.05, 0.05), (0.1, 0.05), (0.01, 0.02)):
        held = np.zeros(2)
        for _ in range(500):
            first, second, _ = rng.multinomial(300, [first_only, second_only, 1 - first_only - second_only])
            low, high = rate_difference_bounds(int(first), int(second), 300, 0.95)
            held += [low <= first_only - second_only, high >= first_only - second_only]
        assert np.all(held / 500 >= 0.92), (first_only, second_only, held)
    low, high = rate_difference_bounds(0, 0, 300, 0.95)
    assert -low == pytest.approx(high) and 0.008 < high < 0.01


def test_a_non_tie_rate_above_the_limit_is_found_as_often_as_stated() -> None:
    """A user once found 1.2 % of such prompts three weeks late: 300 prompts show it 97 times in 100."""
    rng = np.random.default_rng(9)
    noise = arm(noise_margins(rng, 300), 300)
    passed = 0
    for _ in range(200):
        wrong = {index: 2.0 for index in range(300) if rng.random() < 0.012}
        passed += verdict_of(noise, arm({**noise_margins(rng, 300, 0.0), **wrong}, 300)).verdict != "fail"
    assert passed / 200 <= 0.06
    assert ALPHA == 1e-3


def test_one_difference_beyond_any_rounding_fails_where_a_limit_is_given() -> None:
    noise = arm({}, 300)
    for margin, verdict in ((0.4, "inconclusive"), (1.2, "fail")):
        candidate = arm({7: margin}, 300)
        assert judge(Audit(noise, (candidate,)))[1].verdict == "inconclusive"
        section = judge(Audit(noise, (candidate,)), largest_rounding=1.0)[1]
        assert section.verdict == verdict, section.summary
    error = Difference("7", "-", "an answer", "error: garbage", None)
    broken = Arm("arm", (*arm({}, 299).differences, error), frozenset())
    assert judge(Audit(arm({}, 300), (broken,)))[1].verdict == "inconclusive"
    section = judge(Audit(noise, (broken,)), largest_rounding=1.0)[1]
    assert (section.verdict, section.document["non_ties"]) == ("fail", 1)


def test_noise_without_limit_excuses_nothing() -> None:
    """A control that leaves tokens out under load has infinite margins."""
    floor, section = judge(Audit(arm({1: math.inf, 2: 0.1}, 300), (arm({7: 0.5}, 300),)))
    assert floor.document["margins"] == [0.1] and section.document["non_ties"] == 1
