"""Tests of comparing unseeded distributions: what is detected, and what passes."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.bench.reporting.section import Section
from pipelines.client import CompletionRequest, Generation
from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.validation.distribution import sections as sections_module
from pipelines.validation.distribution.drawing import COUPLED, RATIO, Drawn, Draws, draw_from_own
from pipelines.validation.distribution.sections import ALPHA, compare, judge
from pipelines.validation.distribution.sequence_tests import (
    SamplePair,
    TokenSequence,
    compare_positions,
    permutation_p_value,
)
from tests.statistical.goodness_of_fit import detectable_total_variation

VOCAB_SIZE = 12
Law = npt.NDArray[np.float64]
Fault = Callable[[Law, int], Law]
"""Maps the target's distribution and a position, from 0, to the distribution drawn from."""


@functools.cache
def sums_of(fault: Fault, prompt: str, prefix: tuple[int, ...], position: int) -> Law:
    return np.cumsum(fault(law_of(prompt, prefix), position))[:-1]


@functools.cache
def law_of(prompt: str, prefix: tuple[int, ...]) -> Law:
    key = [*map(ord, prompt), *prefix]
    return np.random.default_rng(key).dirichlet(np.full(VOCAB_SIZE, 0.25))


def no_fault(law: Law, position: int) -> Law:
    return law


def shifted(total_variation: float, only_at: int | None = None) -> Fault:
    """Move probability from the second most likely token to the most likely one."""

    def fault(law: Law, position: int) -> Law:
        if only_at not in (None, position):
            return law
        second, first = np.argsort(law)[-2:]
        moved = min(total_variation, law[second])
        return law + moved * (np.eye(VOCAB_SIZE)[first] - np.eye(VOCAB_SIZE)[second])

    return fault


@dataclass
class TableServer:
    """A server that answers from a table of distributions; each fault breaks one thing."""

    fault: Fault = no_fault
    ratio_fault: Fault = no_fault
    fixed_seed: int | None = None
    shares_noise: bool = False
    forgets_seed: bool = False
    tells_seed: bool = True
    is_busy: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.counters = {model: itertools.count(1) for model in ("generate", "generate_target")}
        self.seeds = np.random.default_rng(0)

    def ask(self, request: CompletionRequest, model: str) -> Generation:
        with self.lock:
            order = next(self.counters[model])
            seed = int(self.seeds.integers(2**53))
        if self.is_busy and order % 100 == 0:
            raise ServerBusyError("the queue is full")
        seed = self.fixed_seed if self.fixed_seed is not None else seed
        seed = request.seed if request.seed is not None else seed
        noise = seed
        if self.shares_noise:
            noise = order
        if self.forgets_seed and request.seed is None:
            noise = seed + 1
        rng = np.random.default_rng([noise, *map(ord, request.prompt)])
        fault = self.ratio_fault if request.use_draft_logits else self.fault
        tokens: tuple[int, ...] = ()
        for position in range(request.max_tokens):
            sums = sums_of(fault if model == "generate" else no_fault, request.prompt, tokens[-1:], position)
            tokens += (int(np.searchsorted(sums, rng.random())),)
        seen = seed if self.tells_seed else None
        return Generation("", tokens, (), "length", 0, 0, 0, (), None, 0.0, seed=seen)


@pytest.fixture(autouse=True)
def _fewer_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults planted here are found by the tests of positions too, which need no permutations."""
    assert 1 / (1 + sections_module._PERMUTATIONS) <= ALPHA / 8, "the test of all tokens could never reject"
    monkeypatch.setattr(sections_module, "_PERMUTATIONS", 999)


def draws(server: TableServer, num_answers: int, **changes: Any) -> Draws:
    prompts = tuple(Prompt(str(index), f"prompt {index}") for index in range(8))
    return draw_from_own(prompts, 2, server.ask, num_answers, num_at_once=1, **changes)


def sections(server: TableServer, num_answers: int = 150, **changes: Any) -> list[Section]:
    return judge(draws(server, num_answers, **changes), limit=0.25)


def only(server: TableServer, num_answers: int = 150) -> Section:
    (section,) = sections(server, num_answers, rules=(COUPLED,))
    return section


def test_equal_laws_pass_with_their_bounds_and_seeds() -> None:
    coupled, ratio = sections(TableServer())
    assert (coupled.verdict, ratio.verdict) == ("pass", "pass"), (coupled.summary, ratio.summary)
    assert coupled.title.endswith(COUPLED) and ratio.title.endswith(RATIO)
    assert "4800 different seeds in 4800 answers; 8 replayed" in coupled.summary
    for position in coupled.document["against_target"]["positions"]:
        assert 0 < position["total_variation_upper_bound"] <= 0.25


@pytest.mark.parametrize(
    ("server", "num_answers", "verdict", "words"),
    [
        (TableServer(fault=shifted(0.05)), 600, "fail", "the distribution differs from the target's"),
        (TableServer(fixed_seed=7), 150, "fail", "3599 of 3600 answers came with a seed used before"),
        (TableServer(forgets_seed=True), 150, "fail", "8 of 8 answers differed when requested again"),
        (TableServer(tells_seed=False), 150, "pass", "Not checked: 3600 answers came without their seed"),
        (
            TableServer(is_busy=True),
            150,
            "inconclusive",
            "answers are missing, the first due to: the queue is",
        ),
    ],
)
def test_a_server_is_judged_by_its_answers_and_seeds(
    server: TableServer, num_answers: int, verdict: str, words: str
) -> None:
    section = only(server, num_answers)
    assert (section.verdict, words in section.summary) == (verdict, True), section.summary


def test_a_fault_of_the_ratio_rule_fails_the_ratio_rule_alone() -> None:
    coupled, ratio = sections(TableServer(ratio_fault=shifted(0.2)), num_answers=250)
    assert (coupled.verdict, ratio.verdict) == ("pass", "fail"), (coupled.summary, ratio.summary)


def test_a_wrong_bonus_token_is_caught_at_its_position() -> None:
    section = only(TableServer(fault=shifted(0.3, only_at=2)), num_answers=300)
    assert section.verdict == "fail"
    p_values = [position["p_value"] for position in section.document["against_target"]["positions"]]
    assert p_values[2] <= ALPHA / 4 < min(p_values[:2])


def test_samples_that_share_their_noise_prove_nothing() -> None:
    """Answers that agree one by one, not only in distribution, would make any bound meaningless."""
    rng = np.random.default_rng(6)
    (pair, *_) = markov_pairs(rng, 400)
    comparison = compare([(pair[0], list(pair[0]))] * 8, 1)
    assert comparison.shares_noise
    assert not comparison.rejections
    assert not compare(markov_pairs(rng, 400, num_prompts=8), 1).shares_noise


def test_a_target_that_differs_from_itself_makes_the_figures_inconclusive() -> None:
    drawn = draws(TableServer(), 100, rules=(COUPLED,))
    odd = ((Drawn((1, 1, 1)),) * 100, *drawn.again.answers[1:])
    (section,) = judge(replace(drawn, again=replace(drawn.again, answers=odd)), limit=0.5)
    assert section.verdict == "inconclusive"
    assert "the target alone differs from itself" in section.summary


def test_too_few_answers_are_inconclusive_and_the_number_needed_suffices() -> None:
    few = only(TableServer(), num_answers=60)
    assert few.verdict == "inconclusive"
    needed = int(few.summary.split("about ")[1].split()[0])
    assert 60 < needed < 400
    assert only(TableServer(), num_answers=needed).verdict == "pass"


def test_a_rule_that_the_server_refuses_is_no_pass_and_leaves_the_other_as_it_is() -> None:
    class WithoutRatioRule(TableServer):
        def ask(self, request: CompletionRequest, model: str) -> Generation:
            if request.use_draft_logits:
                raise InvalidRequestError("this server has no draft logits")
            return super().ask(request, model)

    coupled, ratio = sections(WithoutRatioRule())
    assert coupled.verdict == "pass"
    assert ratio.verdict == "inconclusive" and "has no draft logits" in ratio.summary


# The statistics.


def markov_pairs(
    rng: np.random.Generator, num_answers: int, bias: float = 0.0, num_prompts: int = 4
) -> list[SamplePair]:
    """Draw pairs of samples of a Markov chain; ``bias`` moves the second's distribution."""
    pairs: list[SamplePair] = []
    halves = np.array([0.25, 0.25, 0.25, 0.25])
    tilt = np.array([1, 1, -1, -1]) * bias / 2  # the form that is hardest to detect
    for _ in range(num_prompts):
        both: list[list[TokenSequence]] = []
        for law in (halves, halves + tilt):
            tokens = rng.choice(4, size=(num_answers, 2), p=law)
            both.append(list(map(tuple, tokens.tolist())))
        pairs.append((both[0], both[1]))
    return pairs


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Each test rejects between 2 and 8.5 % of 400 A/A comparisons at a level of 5 %."""
    rng = np.random.default_rng(1)
    rejected = np.zeros(3)
    for trial in range(400):
        pairs = markov_pairs(rng, 60, num_prompts=2)
        p_values = [test.p_value for test in compare_positions(pairs)]
        p_values.append(permutation_p_value(pairs, 199, seed=trial))
        rejected += np.array(p_values) <= 0.05
    assert np.all((rejected / 400 >= 0.02) & (rejected / 400 <= 0.085)), rejected


def test_the_detectable_difference_is_detected_as_often_as_stated() -> None:
    rng = np.random.default_rng(2)
    (first, _) = compare_positions(markov_pairs(rng, 500))
    detectable = detectable_total_variation(first.num_samples, first.dof, 1e-3, 0.9)
    found = sum(compare_positions(markov_pairs(rng, 500, detectable))[0].p_value <= 1e-3 for _ in range(200))
    assert 0.83 <= found / 200 <= 0.96, found


@pytest.mark.parametrize("bias", [0.0, 0.05, 0.15])
def test_the_upper_bound_holds_as_often_as_stated(bias: float) -> None:
    rng = np.random.default_rng(3)
    bounds = [
        test.upper_bound(0.95) for _ in range(200) for test in compare_positions(markov_pairs(rng, 300, bias))
    ]
    assert np.mean(np.array(bounds) >= bias) >= 0.93
    assert np.median(bounds) < bias + 0.1


def test_the_discrepancy_of_all_tokens_finds_a_shift_between_likely_tokens_sooner() -> None:
    """Many rare tokens reduce the power of chi-square tests, but hardly that of the Hamming discrepancy."""
    rng = np.random.default_rng(4)
    law = np.array([0.4, 0.3, *[0.3 / 15] * 15])
    other = law + 0.12 * (np.eye(17)[0] - np.eye(17)[1])
    found = np.zeros(2)
    for trial in range(40):
        both = [[(int(token),) for token in rng.choice(17, size=400, p=p)] for p in (law, other)]
        pairs: list[SamplePair] = [(both[0], both[1])]
        p_values = permutation_p_value(pairs, 499, seed=trial), compare_positions(pairs)[0].p_value
        found += np.array(p_values) <= 0.01
    assert found[0] > 1.3 * found[1] > 0, found


def test_equal_frequencies_do_not_hide_a_changed_joint_distribution() -> None:
    """Both tokens are uniform, but equal in one sample: only the test given the prefix detects it."""
    rng = np.random.default_rng(5)
    free = [(int(a), int(b)) for a, b in rng.integers(0, 2, size=(300, 2))]
    tied = [(int(a), int(a)) for a in rng.integers(0, 2, size=300)]
    first, second = compare_positions([(free, tied)])
    assert first.p_value > 1e-3 > 1e-20 > second.p_value
    assert permutation_p_value([(free, tied)], 999) > 1e-3
