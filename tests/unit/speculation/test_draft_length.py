"""Tests of the draft-length controller in a world with known costs and acceptance."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from pipelines.speculation.draft_length.adaptive import DraftLengths
from pipelines.speculation.draft_length.draft_plan import DraftLength, Proposal
from pipelines.speculation.draft_length.request_draft_length import RequestDraftLength
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, count_accepted
from tests.unit.speculation.draft_length_world import MAX_DRAFT_LEN, ROWS, Machine, World


# What lies between these is left to `make test-all`.
@pytest.mark.parametrize(
    "num_requests", [4, 16, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 8))]
)
@pytest.mark.parametrize(
    "agreement",
    [1.0, 0.7, pytest.param(0.4, marks=pytest.mark.long), pytest.param(0.1, marks=pytest.mark.long), 0.0],
)
def test_adaptive_is_as_fast_as_the_best_fixed_length_and_as_no_draft(
    num_requests: int, agreement: float
) -> None:
    num_rounds = 2000 // num_requests
    adaptive, _ = World(num_requests, lambda number: agreement).adaptive(num_rounds)
    fixed = {
        length: World(num_requests, lambda number: agreement).fixed(length, num_rounds)
        for length in (0, 1, 2, 4, 6, 8)
    }
    best = max(fixed, key=lambda length: fixed[length])
    print(
        f"{num_requests} requests, agreement {agreement}: {adaptive / fixed[0]:.3f} of no draft, "
        f"{adaptive / fixed[best]:.3f} of the best fixed length {best}"
    )
    assert adaptive >= 0.97 * fixed[0]
    assert adaptive >= 0.97 * fixed[best]


@pytest.mark.parametrize("num_requests", [8, 16])
def test_speculation_that_looks_good_and_does_not_pay_is_hardly_slower(num_requests: int) -> None:
    """A processor with AVX2 alone: rows cost nearly as much as steps, and everything else takes longer."""
    calibrated = 0.0235 + 0.0042 * np.array(ROWS)
    machine = Machine(
        calibrated_s=calibrated.tolist(),
        target_s=(calibrated * np.exp(0.06 * np.log2(np.array(ROWS) / 11))).tolist(),
        draft_s=[0.0032] * len(ROWS),
        overhead_s=0.0005,
    )
    for agreement in (1.0, 0.9):
        worlds = [
            World(num_requests, lambda number, is_right=agreement: is_right, 0, machine) for _ in range(2)
        ]
        gain = worlds[0].adaptive(600)[0] / worlds[1].fixed(0, 600)
        print(f"{num_requests} requests, agreement {agreement}: {gain:.3f} of no draft")
        assert gain >= 0.98


@pytest.mark.parametrize(
    ("num_requests", "num_seeds"),
    [(1, 6), *(pytest.param(number, 16, marks=pytest.mark.long) for number in (1, 8))],
)
def test_the_length_follows_a_change_of_the_text_within_forty_rounds(
    num_requests: int, num_seeds: int
) -> None:
    """All texts change together, after probes have become rare."""
    away, back = 100, 500
    returned = []
    for seed in range(num_seeds):
        world = World(num_requests, lambda number: 0.0 if away <= number < back else 1.0, seed)
        _, verified = world.adaptive(back + 100)
        settled = np.mean(verified[back + 50 :])
        assert settled > 4 * np.mean(verified[away + 10 : back])
        returned.append(np.mean(verified[back + 30 : back + 40]) / settled)
    print(f"{num_requests} requests, share of the settled length in rounds 30 to 40: {np.sort(returned)}")
    assert np.median(returned) > 0.8 and min(returned) > 0.1


def test_a_round_is_a_step_whoever_begins_ends_or_reads_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = World(16, lambda number: 1.0).lengths
    played = []
    monkeypatch.setattr(DraftLengths, "_begin_round", lambda lengths: played.append(len(lengths._requests)))
    requests = [lengths.begin(NO_TOKENS) for _ in range(16)]
    for _ in range(3):  # the others read their prompts
        lengths.next_threshold(requests[0])
    assert len(played) == 3
    for number, request in enumerate(requests[1:]):  # they ask for the first time, and some end
        lengths.next_threshold(request)
        if number % 3 == 0:
            lengths.end(request)
            lengths.begin(NO_TOKENS)
    assert len(played) == 3
    lengths.next_threshold(requests[0])
    assert len(played) == 4


def test_a_probe_finds_a_request_however_many_have_ended() -> None:
    lengths = World(2, lambda number: 0.0).lengths
    requests = [lengths.begin(NO_TOKENS) for _ in range(6)]
    for request in requests[1::2] + requests[:1]:
        lengths.end(request)
    num_probed = 0
    for _ in range(160):
        lengths.probing.begin_round(is_trying=False, gain=0.0)
        num_probed += sum(lengths.is_probed(request) for request in requests[2::2])
    assert num_probed == 10


def test_a_request_that_drafts_nothing_is_probed_cheaply() -> None:
    world = World(1, lambda number: 0.0)
    request = world.lengths.begin(NO_TOKENS)
    for number in range(60):  # never the same token, otherwise it would be looked up
        drafted = Output(np.zeros(1, np.int32), "", True, margins=np.zeros(1, np.float32))
        request.observe(Proposal(drafted.token_ids, np.ones(1), drafted), np.full(1, 1 + number, np.int32))
    plans = [request.next_round(100) for _ in range(400)]
    assert 0 < sum(plan.max_tokens for plan in plans[:30]) <= 15
    assert 0 < sum(plan.max_tokens for plan in plans[200:]) <= 13


def test_a_request_that_is_probed_is_probed_several_times_in_a_row() -> None:
    """The first probe reads the whole text with the draft; the others cost a token."""
    lengths = World(8, lambda number: 0.0).lengths
    requests = [lengths.begin(NO_TOKENS) for _ in range(8)]
    probed = []
    for _ in range(400):
        lengths.probing.begin_round(is_trying=False, gain=0.0)
        numbers = tuple(number for number, request in enumerate(requests) if lengths.is_probed(request))
        if numbers:
            probed.append(numbers)
    assert set().union(*probed) == set(range(8))
    num_changes = sum(before != after for before, after in itertools.pairwise(probed))
    assert num_changes <= len(probed) / 3


def test_requests_that_ended_weigh_nothing() -> None:
    world = World(1, lambda number: 1.0)
    alone = world.lengths.begin(NO_TOKENS)
    before = world.lengths.next_threshold(alone)
    others = [world.lengths.begin(NO_TOKENS) for _ in range(15)]
    assert world.lengths.next_threshold(alone) > before
    for other in others:
        world.lengths.end(other)
    assert world.lengths.next_threshold(alone) == before
    assert isinstance(alone, RequestDraftLength)


def test_a_round_near_the_end_of_the_budget_drafts_less() -> None:
    request = World(1, lambda number: 1.0).lengths.begin(NO_TOKENS)
    assert [request.next_round(remaining).max_tokens for remaining in (1, 2, 5, 100)] == [
        0,
        1,
        4,
        MAX_DRAFT_LEN,
    ]


def test_text_that_repeats_is_looked_up_instead_of_drafted() -> None:
    world = World(1, lambda number: 0.4)
    request = world.lengths.begin(np.tile(np.arange(9, dtype=np.int32), 4))
    plan = request.next_round(100)
    assert plan.max_tokens == 0
    assert plan.complete(None).token_ids.tolist() == list(range(8))
    # The text changes: lookups are wrong, and soon no longer proposed.
    for number in range(10):
        request.observe(plan.complete(None), np.array([100 + number], np.int32))
        request.lookup.append(np.arange(9, dtype=np.int32))
        plan = request.next_round(100)
    assert plan.max_tokens > 0


def test_the_draft_is_asked_in_the_round_after_the_text_ceases_to_repeat() -> None:
    world = World(1, lambda number: 0.9)
    request = world.lengths.begin(np.tile(np.arange(9, dtype=np.int32), 4))
    assert request.next_round(100).max_tokens == 0
    request.observe(Proposal(NO_TOKENS, None, None), np.array([100], np.int32))  # nothing matches now
    plan = request.next_round(100)
    assert plan.max_tokens == world.lengths.depth > 2


def test_lookups_that_would_be_right_are_noticed_while_nothing_is_drafted() -> None:
    text = np.arange(100, 400, dtype=np.int32)
    request = World(1, lambda number: 0.0).lengths.begin(NO_TOKENS, None, text)
    for number in range(60):
        drafted = Output(np.zeros(1, np.int32), "", True, margins=np.zeros(1, np.float32))
        request.observe(Proposal(drafted.token_ids, np.ones(1), drafted), np.full(1, 1 + number, np.int32))
    lengths = []
    for token_id in text[:30]:
        plan = request.next_round(100)
        lengths.append(len(plan.complete(None).token_ids) if not plan.max_tokens else 0)
        request.observe(Proposal(NO_TOKENS, None, None), np.full(1, token_id, np.int32))
    assert sum(lengths[:3]) == 0
    assert lengths[-1] == MAX_DRAFT_LEN


def test_drafts_are_looked_up_in_earlier_answers_of_the_session() -> None:
    lengths = World(1, lambda number: 0.4).lengths
    earlier, prompt = np.arange(100, 140, dtype=np.int32), np.array([7, 8, 9, 110, 111, 112], np.int32)
    request = lengths.begin(prompt, None, earlier)
    assert request.next_round(100).complete(None).token_ids.tolist() == list(range(113, 121))
    assert not len(lengths.begin(prompt).lookup.propose(8).token_ids)
    assert not len(lengths.begin(prompt, None, earlier, sees_margins=False).lookup.propose(8).token_ids)


def test_drafts_are_looked_up_in_the_prediction_alone_and_behind_those_of_the_model() -> None:
    lengths = World(1, lambda number: 0.4).lengths
    prompt, prediction = np.array([7, 8, 9], np.int32), np.arange(100, 140, dtype=np.int32)
    request = lengths.begin(prompt, prediction_ids=prediction)
    request.observe(Proposal(NO_TOKENS, None, None), prediction[:4])
    plan = request.next_round(100)
    alone = plan.complete(None)
    assert (alone.token_ids.tolist(), alone.num_predicted) == (list(range(104, 112)), 8)
    both = plan.complete(Output(prediction[4:6], "length", True, margins=np.full(2, 9.0, np.float32)))
    assert (both.token_ids.tolist(), both.num_predicted) == (list(range(104, 112)), 6)
    assert both.survival is not None and len(both.survival) == 8 and (np.diff(both.survival) <= 0).all()
    forced = both.behind(np.array([1], np.int32), 8)
    assert (forced.token_ids.tolist(), forced.num_predicted) == ([1, 104, 105], 0)


def rounds_with_lookups(request: DraftLength, text: Iterator[int], num_rounds: int) -> list[int]:
    """Give a request a text that it does not draft by model; return the accepted tokens of each round."""
    accepted = []
    upcoming = list(itertools.islice(text, num_rounds * (MAX_DRAFT_LEN + 1)))
    for _ in range(num_rounds):
        plan = request.next_round(1000)
        assert plan.max_tokens == 0, "the draft model is not asked"
        proposal = plan.complete(None)
        num_accepted = count_accepted(proposal.token_ids, np.array(upcoming, np.int32))
        request.observe(proposal, np.array(upcoming[: num_accepted + 1], np.int32))
        accepted.append(num_accepted)
        del upcoming[: num_accepted + 1]
    return accepted


def test_a_request_that_the_draft_refuses_goes_on_with_lookups() -> None:
    request = World(1, lambda number: 1.0).lengths.begin(NO_TOKENS)
    assert request.next_round(1000).max_tokens > 0
    request.note_refusal()
    assert sum(rounds_with_lookups(request, itertools.count(1), 40)) == 0, "nothing repeats yet"
    repeated = rounds_with_lookups(request, itertools.cycle(range(500, 520)), 60)
    assert np.mean(repeated[-20:]) > 0.8 * MAX_DRAFT_LEN
    assert sum(rounds_with_lookups(request, itertools.count(1000), 60)[-40:]) == 0


def test_a_request_that_the_draft_refuses_changes_nothing_for_the_others() -> None:
    lengths = World(2, lambda number: 1.0).lengths
    refused, other = lengths.begin(NO_TOKENS), lengths.begin(NO_TOKENS)
    refused.note_refusal()
    assert [each.next_round(100).max_tokens > 0 for each in (refused, other)] == [False, True]


def test_with_the_ratio_rule_a_refused_request_drafts_nothing() -> None:
    text = np.tile(np.arange(9, dtype=np.int32), 4)
    request = World(1, lambda number: 1.0).lengths.begin(text, sees_margins=False)
    request.note_refusal()
    plan = request.next_round(100)
    assert plan.max_tokens == 0 and not len(plan.complete(None).token_ids)


def test_without_margins_speculation_comes_back_too() -> None:
    """With the ratio rule, lengths follow mean acceptance; probes are verified there, and rare."""
    request = World(8, lambda number: 0.0).lengths.begin(NO_TOKENS, sees_margins=False)
    lengths = []
    for number in range(400):
        plan = request.next_round(1000)
        drafted = Output(np.zeros(plan.max_tokens, np.int32), "length", True) if plan.max_tokens else None
        is_right = number >= 200
        own = np.full(1, 1 + number, np.int32)
        accepted = NO_TOKENS if drafted is None or not is_right else drafted.token_ids
        request.observe(plan.complete(drafted), np.concatenate((accepted, own)))
        lengths.append(plan.max_tokens)
    assert sum(lengths[100:200]) <= 100 / 16 + 1
    assert np.mean(lengths[300:]) > 1
