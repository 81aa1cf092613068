"""Tests of the proof's plan: pairs of levels, sizes, caches."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest

from pipelines.bench.reporting.rates import prompts_needed
from pipelines.client import CompletionRequest
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompt_files import read_prompts
from pipelines.errors import VerificationError
from pipelines.validation.exact.plan import (
    NO_DRAFT,
    DraftLength,
    Pass,
    ProofPlan,
    covering_array,
    pairs_of_levels,
    passes_of,
    pool_of,
    questions_of,
)
from pipelines.validation.exact.run import QUICK, RELEASE, Limits, Size, plan_of, read_limits
from pipelines.validation.exact.sampling_kinds import GREEDY, KINDS, PARAMETERS, is_greedy
from tests.support.demo_prompts import DEMO_PROMPTS

LIMITS = Limits(max_draft_len=8, max_requests=80, default_draft_length="adaptive")
DIMENSIONS = (
    *("kind", "draft_length", "num_at_once"),
    *("is_staggered", "is_streaming", "with_cancellations", "is_cold"),
)


def plan(size: Size, limits: Limits = LIMITS) -> ProofPlan:
    return plan_of(size, read_prompts(DEMO_PROMPTS).draw(size.num_prompts).all, limits)


def rows(passes: list[Pass]) -> list[tuple[object, ...]]:
    return [tuple(getattr(asked, name) for name in DIMENSIONS) for asked in passes]


def test_a_server_on_tensorrt_llm_is_asked_what_it_drafts_for() -> None:
    said = {"max_draft_len": "8", "max_batch_size": "64", "max_queue_size": "16"}
    assert read_limits(said, "adaptive") == LIMITS
    limits = read_limits({**said, "engine_access": "tensorrt_llm"}, "adaptive")
    assert {asked.kind for asked in passes_of(plan(QUICK, limits))} == {GREEDY}


@pytest.mark.parametrize(
    "num_levels", [(2, 2), (3, 1, 4), (4, 9, 5, 2, 2, 2, 2), (4, 1, 4, 2, 2, 2, 2), (7, 7, 7), (2,) * 9]
)
def test_every_pair_of_levels_stands_in_a_row(num_levels: tuple[int, ...]) -> None:
    array = covering_array(num_levels)
    met = {pair for row in array for pair in itertools.combinations(enumerate(row), 2)}
    assert met == pairs_of_levels(num_levels)
    assert array == covering_array(num_levels)
    widest, second = sorted(num_levels)[:-3:-1]
    # this is the minimum; the full product has more
    assert widest * second <= len(array) <= 3 * widest * second


def test_the_pairs_that_must_meet_are_all_there_are() -> None:
    assert len(pairs_of_levels((3, 2, 4))) == 3 * 2 + 3 * 4 + 2 * 4


@pytest.mark.parametrize("num_levels", [(), (4,), (3, 0)])
def test_an_array_needs_two_dimensions_with_levels(num_levels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        covering_array(num_levels)


@pytest.mark.parametrize("size", [RELEASE, QUICK])
def test_the_passes_bring_every_two_levels_of_the_issue_together(size: Size) -> None:
    levels = {
        "kind": KINDS,
        "draft_length": (*(DraftLength(n, str(n)) for n in range(9)), DraftLength(None, "adaptive")),
        "num_at_once": (1, 2, 4, 8, 16),
        **dict.fromkeys(DIMENSIONS[3:], (False, True)),
    }
    together = rows([asked for asked in passes_of(plan(size)) if asked.model == SPECULATIVE])
    for first, second in itertools.combinations(range(len(DIMENSIONS)), 2):
        met = {(row[first], row[second]) for row in together}
        assert met == set(itertools.product(levels[DIMENSIONS[first]], levels[DIMENSIONS[second]]))


def test_the_target_alone_goes_through_every_kind_and_load_too() -> None:
    alone = [asked for asked in passes_of(plan(RELEASE)) if asked.model == TARGET_ALONE]
    assert {asked.draft_length for asked in alone} == {NO_DRAFT}
    assert {(asked.kind, asked.num_at_once) for asked in alone} == set(
        itertools.product(KINDS, (2, 4, 8, 16))
    )


def test_the_ensemble_is_asked_in_each_kind_streamed_and_whole_with_few_prompts() -> None:
    whole = plan(RELEASE)
    through = [asked for asked in passes_of(whole) if asked.model == ENSEMBLE]
    assert [asked.kind for asked in through] == list(KINDS)
    assert {asked.is_streaming for asked in through} == {False, True}
    assert not any(asked.with_cancellations for asked in through), "it finishes what its client has left"
    for asked in through:
        assert len(questions_of(whole, asked, "n")) == RELEASE.num_alone


def test_the_numbers_of_the_passes_are_their_places() -> None:
    assert [asked.number for asked in passes_of(plan(QUICK))] == list(range(len(passes_of(plan(QUICK)))))


def test_a_release_compares_enough_tokens_and_prompts() -> None:
    whole = plan(RELEASE)
    tokens: Counter[bool] = Counter()
    for asked in passes_of(whole):
        if asked.model == SPECULATIVE:
            tokens[is_greedy(asked.kind)] += len(questions_of(whole, asked, "n")) * RELEASE.max_tokens
    assert min(tokens.values()) > 1.15 * RELEASE.goal.num_tokens  # some answers end early
    assert RELEASE.goal.num_tokens >= 200_000
    assert RELEASE.num_prompts >= prompts_needed(RELEASE.goal.max_rate, 0.95) >= 299
    assert QUICK.num_prompts >= prompts_needed(QUICK.goal.max_rate, 0.95)


@pytest.mark.parametrize("size", [RELEASE, QUICK])
def test_every_prompt_is_asked_greedily_and_with_a_seed(size: Size) -> None:
    whole = plan(size)
    asked_of: dict[bool, set[str]] = {True: set(), False: set()}
    for asked in passes_of(whole):
        if asked.model == SPECULATIVE:
            questions = questions_of(whole, asked, "n")
            asked_of[is_greedy(asked.kind)] |= {question.prompt.prompt_id for question in questions}
    everything = {prompt.prompt_id for prompt in whole.prompts}
    assert asked_of == {True: everything, False: everything}


@pytest.mark.parametrize("size", [RELEASE, QUICK])
def test_every_pass_has_as_many_requests_as_it_has_at_once(size: Size) -> None:
    whole = plan(size)
    assert all(len(questions_of(whole, asked, "n")) >= asked.num_at_once for asked in passes_of(whole))


def test_a_cold_prompt_was_never_asked_before_and_a_warm_one_is_asked_by_all_passes_of_its_kind() -> None:
    whole = plan(QUICK)
    cold: list[str] = []
    warm: dict[str, set[CompletionRequest]] = {kind: set() for kind in KINDS}
    for asked in passes_of(whole):
        requests = [question.request for question in questions_of(whole, asked, "run")]
        if asked.is_cold:
            prompts = [request.prompt or bytes(request.prompt_ids).decode() for request in requests]
            cold += prompts
            assert all(prompt.startswith("# run ") for prompt in prompts)
        else:
            warm[asked.kind] |= set(requests)
    assert len(set(cold)) == len(cold) > 100
    assert len({text.split("\n", 1)[0] for text in cold}) == len(cold)
    assert all(len(requests) == QUICK.num_prompts / 2 for requests in warm.values())


def test_every_kind_is_asked_with_prompts_of_all_corpora() -> None:
    for kind in KINDS:
        corpora = {prompt.prompt_id.split("-")[0] for _, prompt in pool_of(plan(RELEASE).prompts, kind)}
        assert corpora == {"heldout", "mixed", "repetitive", "adversarial"}


def test_every_parameter_of_a_request_is_used_by_a_kind() -> None:
    whole = plan(RELEASE)
    default = CompletionRequest("")
    used: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for asked in passes_of(whole):
        for question in questions_of(whole, asked, "n"):
            used[asked.kind] |= {
                field.name
                for field in dataclasses.fields(default)
                if getattr(question.request, field.name) != getattr(default, field.name)
            }
    shared = {"prompt", "max_tokens"}
    penalties = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
    words = {
        "bad_words",
        "stop_words",
        "stop_token_ids",
        "min_tokens",
        "logit_bias",
        "num_log_probs",
        "guide",
    }
    prompts = {"prompt_ids", "add_special_tokens", "parse_special_tokens", "return_prompt_log_probs"}
    assert used["greedy"] == shared
    assert used["greedy, parameters"] == shared | penalties | words | prompts
    assert used["seeded"] == shared | {"temperature", "seed"}
    everything = {field.name for field in dataclasses.fields(default)}
    # These are not the request's to vary: what passes set, what the engine has, what the ensemble lacks.
    assert used["seeded, parameters"] == everything - {
        "num_draft_tokens",
        "use_draft_logits",
        "end_id",
        "arm",
        "skip_special_tokens",
        "resume_output_ids",
        "session_id",
    }


def test_all_sets_of_parameters_are_used_also_in_a_quick_proof_and_fit_the_answer() -> None:
    whole = plan(QUICK)
    for kind in ("greedy, parameters", "seeded, parameters"):
        requests = [
            question.request
            for each in passes_of(whole)
            if each.kind == kind
            for question in questions_of(whole, each, "n")
        ]
        assert len({dataclasses.replace(r, prompt="", seed=0, logit_bias=()) for r in requests}) >= min(
            len(PARAMETERS[kind]), QUICK.num_prompts // 2
        )
        assert all(request.min_tokens <= request.max_tokens for request in requests)
        assert all(len({i for i, _ in r.logit_bias}) == len(r.logit_bias) for r in requests)


def test_seeds_differ_and_reach_the_ends_of_64_bits() -> None:
    whole = plan(RELEASE)
    seeds: dict[str, set[int]] = {"seeded": set(), "seeded, parameters": set()}
    for asked in passes_of(whole):
        if not is_greedy(asked.kind):
            for question in questions_of(whole, asked, "n"):
                assert question.request.seed is not None
                seeds[asked.kind].add(question.request.seed)
    for each in seeds.values():
        assert len(each) == RELEASE.num_prompts / 2
        assert {seed.bit_length() > 53 for seed in each} == {True, False}
    assert max(map(max, seeds.values())) < 2**64


def test_loads_that_the_server_would_refuse_are_left_out() -> None:
    small = plan(QUICK, Limits(max_draft_len=2, max_requests=6, default_draft_length="adaptive"))
    assert small.loads == (1, 2, 4)
    assert max(asked.num_at_once for asked in passes_of(small)) == 4
    assert {str(asked.draft_length) for asked in passes_of(small)} == {"", "0", "1", "2", "adaptive"}


def test_limits_are_read_from_the_server_or_refused() -> None:
    told = {"max_draft_len": "5", "max_batch_size": "4", "max_queue_size": "8"}
    assert read_limits(told, "4") == Limits(5, 12, "4")
    for broken in ({}, {**told, "max_draft_len": "many"}):
        with pytest.raises(VerificationError, match="limits of the server cannot be read"):
            read_limits(broken, "4")
