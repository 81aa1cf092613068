"""Tests of the proof's plan: combinations, sizes, caches."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from dataclasses import replace

import pytest

from pipelines.client import CompletionRequest
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompt_files import read_prompts
from pipelines.errors import VerificationError
from pipelines.validation.exact.plan import (
    NO_DRAFT,
    NUM_COMBINATIONS,
    DraftLength,
    Limits,
    Pass,
    ProofPlan,
    Question,
    pass_of,
    pool_of,
    questions_of,
)
from pipelines.validation.exact.sampling_kinds import GREEDY, KINDS, PARAMETERS, is_greedy
from tests.support.demo_prompts import DEMO_PROMPTS

LIMITS = Limits(8, 80, DraftLength.of_server("adaptive"))
FLAGS = ("is_staggered", "is_streaming", "with_cancellations", "is_cold")
NUM_PROMPTS, TOKENS = 320, 10


def plan(limits: Limits = LIMITS, num_prompts: int = NUM_PROMPTS) -> ProofPlan:
    return ProofPlan.of(read_prompts(DEMO_PROMPTS).draw(num_prompts).all, limits, is_quick=False)


def schedule(
    num_of_pass: int = NUM_PROMPTS // 2, limits: Limits = LIMITS, num_prompts: int = NUM_PROMPTS
) -> dict[Pass, tuple[Question, ...]]:
    whole = plan(limits, num_prompts)
    passes = [pass_of(whole, number) for number in range(4 * NUM_COMBINATIONS)]
    return {asked: questions_of(whole, asked, 3, num_of_pass, TOKENS, "run") for asked in passes}


def test_kinds_lengths_and_flags_meet_in_every_combination_of_two() -> None:
    """In the first round already."""
    passes = [pass_of(plan(), number) for number in range(NUM_COMBINATIONS)]
    assert [asked.number for asked in passes] == list(range(12))
    together = [asked for asked in passes if asked.model == SPECULATIVE]
    names = ("kind", "draft_length", *FLAGS)
    levels = {name: {getattr(asked, name) for asked in together} for name in names}
    assert levels["kind"] == set(KINDS)
    assert {length.name for length in levels["draft_length"]} == {"0-8", "adaptive"}
    for first, second in itertools.combinations(names, 2):
        met = {(getattr(asked, first), getattr(asked, second)) for asked in together}
        assert met == set(itertools.product(levels[first], levels[second])), (first, second)
    assert {asked.num_at_once for asked in together} == {1, 2, 4, 8, 16}


def test_further_rounds_bring_other_loads_to_every_combination() -> None:
    for place in range(NUM_COMBINATIONS):
        rounds = [pass_of(plan(), place + turn * NUM_COMBINATIONS) for turn in range(4)]
        assert len({asked.num_at_once for asked in rounds}) == 4
        assert len({replace(asked, number=0, num_at_once=0) for asked in rounds}) == 1


def test_four_rounds_bring_every_load_to_every_kind() -> None:
    together = [asked for asked in schedule(4) if asked.model == SPECULATIVE]
    met = {(asked.kind, asked.num_at_once) for asked in together}
    assert met == set(itertools.product(KINDS, (1, 2, 4, 8, 16)))


def test_a_pass_with_fixed_draft_lengths_asks_for_each_in_turn() -> None:
    fixed = DraftLength.all_fixed(8)
    assert [fixed.at(place) for place in (0, 1, 8, 9)] == [(0, "0"), (1, "1"), (8, "8"), (0, "0")]
    assert {LIMITS.default_length.at(place) for place in range(3)} == {(None, "adaptive")}


def test_the_target_alone_and_the_ensemble_are_asked_under_load() -> None:
    asked = schedule(4)
    alone = [each for each in asked if each.model == TARGET_ALONE]
    assert {each.draft_length for each in alone} == {NO_DRAFT}
    assert {is_greedy(each.kind) for each in alone} == {True, False}
    assert {each.num_at_once for each in alone} == {2, 4, 8, 16}, "at one request it is the reference"
    through = [each for each in asked if each.model == ENSEMBLE]
    assert {is_greedy(each.kind) for each in through} == {each.is_streaming for each in through}
    assert not any(each.with_cancellations for each in through), "it finishes what its client has left"


@pytest.mark.parametrize("num_of_pass", [4, NUM_PROMPTS // 2])
def test_every_load_is_reached_and_no_more_prompts_are_asked_than_said(num_of_pass: int) -> None:
    for asked, questions in schedule(num_of_pass).items():
        assert len(questions) == max(num_of_pass, asked.num_at_once)
        assert len({question.prompt.prompt_id for question in questions}) == len(questions)


def test_a_cold_prompt_was_never_asked_before_and_a_warm_one_is_asked_by_all_passes_of_its_kind() -> None:
    cold: list[str] = []
    warm: dict[str, set[CompletionRequest]] = {kind: set() for kind in KINDS}
    for asked, questions in schedule(num_prompts=24).items():
        requests = [question.request for question in questions]
        if asked.is_cold:
            cold += [request.prompt or bytes(request.prompt_ids).decode() for request in requests]
        else:
            warm[asked.kind] |= set(requests)
    assert all(prompt.startswith("# run ") for prompt in cold)
    assert len({prompt.split("\n", 1)[0] for prompt in cold}) == len(cold) > 100
    assert all(len(requests) == 12 for requests in warm.values())


def test_every_kind_is_asked_with_prompts_of_all_corpora() -> None:
    for kind in KINDS:
        corpora = {prompt.prompt_id.split("-")[0] for _, prompt in pool_of(plan(), kind)}
        assert corpora == {"heldout", "mixed", "repetitive", "adversarial"}


NOT_VARIED = {  # what passes set, what the engine has, what the ensemble lacks
    *("num_draft_tokens", "use_draft_logits", "end_id", "arm"),
    *("skip_special_tokens", "resume_output_ids", "session_id", "cache_salt", "prediction"),
}
FIELDS = {field.name for field in dataclasses.fields(CompletionRequest)}


@pytest.mark.parametrize(
    ("kind", "varied"),
    [
        ("greedy", {"prompt", "max_tokens"}),
        ("greedy, parameters", FIELDS - NOT_VARIED - {"temperature", "seed", "top_k", "top_p", "min_p"}),
        ("seeded", {"prompt", "max_tokens", "temperature", "seed"}),
        ("seeded, parameters", FIELDS - NOT_VARIED),
    ],
)
def test_every_parameter_of_a_request_is_used_by_a_kind(kind: str, varied: set[str]) -> None:
    default = CompletionRequest("")
    requests = {
        question.request
        for asked, questions in schedule().items()
        if asked.kind == kind
        for question in questions
    }
    used = {name for each in requests for name in FIELDS if getattr(each, name) != getattr(default, name)}
    assert used == varied


@pytest.mark.parametrize("kind", ["greedy, parameters", "seeded, parameters"])
def test_all_sets_of_parameters_are_used_also_in_a_quick_proof_and_fit_the_answer(kind: str) -> None:
    asked = [questions for each, questions in schedule(num_prompts=24).items() if each.kind == kind]
    requests = [question.request for questions in asked for question in questions]
    sets = {dataclasses.replace(each, prompt="", seed=0, logit_bias=()) for each in requests}
    assert len(sets) >= min(len(PARAMETERS[kind]), 12)
    assert all(each.min_tokens <= each.max_tokens for each in requests)
    assert all(len({i for i, _ in each.logit_bias}) == len(each.logit_bias) for each in requests)


def test_seeds_differ_and_reach_the_ends_of_64_bits() -> None:
    seeds: dict[str, set[int]] = defaultdict(set)
    for asked, questions in schedule().items():
        if not is_greedy(asked.kind):
            seeds[asked.kind] |= {question.request.seed or 0 for question in questions}
    assert set(seeds) == {"seeded", "seeded, parameters"}
    for each in seeds.values():
        assert len(each) == NUM_PROMPTS / 2 and max(each) < 2**64
        assert {seed.bit_length() > 53 for seed in each} == {True, False}


def test_loads_that_the_server_would_refuse_are_left_out() -> None:
    small = plan(replace(LIMITS, max_draft_len=2, max_requests=6))
    assert small.limits.loads == (1, 2, 4)
    passes = [pass_of(small, number) for number in range(NUM_COMBINATIONS)]
    assert max(asked.num_at_once for asked in passes) == 4
    assert {asked.draft_length.name for asked in passes} == {"", "0-2", "adaptive"}
    assert {asked.num_at_once for asked in passes if asked.model == TARGET_ALONE} <= {2, 4}


def test_limits_are_read_from_the_server_or_refused() -> None:
    told = {"max_draft_len": "5", "max_batch_size": "4", "max_queue_size": "8"}
    assert Limits.of(told, "4") == Limits(5, 12, DraftLength.of_server("4"))
    limits = Limits.of({**told, "engine_access": "tensorrt_llm"}, "adaptive")
    assert {asked.kind for asked in schedule(limits=limits)} == {GREEDY}, "what it drafts for"
    for broken in ({}, {**told, "max_draft_len": "many"}):
        with pytest.raises(VerificationError, match="limits of the server cannot be read"):
            Limits.of(broken, "4")
