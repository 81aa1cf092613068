"""Tests of the rule for draft lengths, on a machine and texts that are known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftLength
from pipelines.speculation.draft_length.rule import DraftLengths, RequestDraftLength
from pipelines.speculation.draft_length.step_times import StepTimes
from pipelines.speculation.proposal import Proposal
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, count_accepted
from tests.unit.speculation.draft_length_world import (
    DRAFT_S,
    MAX_DRAFT_LEN,
    ROWS,
    TARGET_S,
    VNNI_DRAFT_S,
    VNNI_TARGET_S,
    Machine,
    play,
)

SEEDS = range(4)


def lengths_of(num_read: int = 0) -> DraftLengths:
    """Return a controller whose draft has read some tokens of each prompt."""
    times = StepTimes(ROWS, DRAFT_S), StepTimes(ROWS, TARGET_S)
    return DraftLengths(*times, MAX_DRAFT_LEN, lambda token_ids, _: min(num_read, len(token_ids)))


def of_best_constant(
    num_requests: int,
    agreement: float,
    num_rounds: int,
    machine: Machine | None = None,
    *,
    in_one_pass: bool = False,
) -> tuple[float, float]:
    """Return the rule's speed beside that of the best constant, and beside that of no draft."""
    speeds = {fixed: 0.0 for fixed in (None, 0, 1, 2, 3, 4, 6, 8)}
    for fixed, seed in itertools.product(speeds, SEEDS):
        played = play(
            num_requests,
            num_rounds,
            lambda number: agreement,
            fixed=fixed,
            seed=seed,
            machine=machine,
            in_one_pass=in_one_pass,
        )
        speeds[fixed] += played.speed() / len(SEEDS)
    ours = speeds.pop(None)
    print(f"{num_requests} requests, agreement {agreement}: {ours / speeds[0]:.3f} of no draft")
    return ours / max(speeds.values()), ours / speeds[0]


@pytest.mark.parametrize("num_requests", [1, 2, 4, 8])
@pytest.mark.parametrize("agreement", [1e9, 1.0, 0.8, 0.5])
def test_no_constant_is_faster_from_the_first_round_on(num_requests: int, agreement: float) -> None:
    to_best, to_none = of_best_constant(num_requests, agreement, 80)
    assert to_best >= 0.92 and to_none >= 0.95, "with what the trials of the first rounds cost"
    if agreement == 1:
        assert to_best >= 0.96 and to_none >= 0.97, "as the published pair"


def test_requests_share_what_a_further_token_costs() -> None:
    machine = Machine(VNNI_TARGET_S, VNNI_DRAFT_S, VNNI_TARGET_S, VNNI_DRAFT_S)
    to_best, _ = of_best_constant(3, 1e9, 200, machine)
    assert to_best >= 0.92, "each by itself would find a second token too dear"


@pytest.mark.parametrize("num_requests", [1, 4])
@pytest.mark.parametrize("agreement", [1e9, 1.0, 0.5])
def test_no_constant_is_faster_with_a_draft_in_one_pass(num_requests: int, agreement: float) -> None:
    to_best, to_none = of_best_constant(num_requests, agreement, 80, in_one_pass=True)
    assert to_best >= 0.95 and to_none >= 0.95


def test_a_draft_in_one_pass_drafts_more_tokens_because_they_cost_one_step() -> None:
    passes, steps = (play(1, 400, in_one_pass=in_one_pass) for in_one_pass in (True, False))
    assert np.mean(passes.verified[100:]) > np.mean(steps.verified[100:])
    assert passes.speed(100) > 1.05 * steps.speed(100)


def test_without_a_draft_tokens_are_only_looked_up() -> None:
    lengths = DraftLengths(None, StepTimes(ROWS, TARGET_S), MAX_DRAFT_LEN)
    text = np.tile(np.arange(20, 60, dtype=np.int32), 3)
    repeating, plain = lengths.begin(text), lengths.begin(np.arange(50, dtype=np.int32))
    num_found = 0
    for number in range(30):
        ids = text[number % 40 : number % 40 + 1]
        for request in (repeating, plain):
            plan = request.next_round(1000)
            assert plan.max_tokens == 0, "there is no draft model to call"
            proposal = plan.complete(None)
            num_found += len(proposal.token_ids)
            request.observe(proposal, ids if request is repeating else np.array([900 + number], np.int32))
    assert num_found > 20


def test_a_text_that_the_draft_never_knows_costs_next_to_nothing() -> None:
    played, alone = play(1, 2000, lambda number: 0.0), play(1, 200, fixed=0)
    assert np.mean(played.verified[:3]) >= 1, "it begins as an optimist"
    assert played.speed(20) >= 0.98 * alone.speed()
    assert 0 < sum(played.verified[1000:]) < 40, "it is tried again now and then"


def test_a_change_of_the_text_is_followed() -> None:
    for seed in SEEDS:
        played = play(1, 2000, lambda number: 0.0 if 100 <= number < 250 else 1.0, seed=seed)
        settled = np.mean(played.verified[50:100])
        assert np.mean(played.verified[200:250]) < 0.5 * settled
        assert np.mean(played.verified[1800:]) > 0.7 * settled


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_wrong_row_in_the_table_is_corrected(role: str, index: int, factor: float) -> None:
    """Each row in turn was timed ten times too long or too short."""
    times = list(TARGET_S if role == "target" else DRAFT_S)
    times[index] *= factor
    wrong = Machine(timed_target_s=times) if role == "target" else Machine(timed_draft_s=times)
    for num_requests in (1, 4):
        right, ours = play(num_requests, 100), play(num_requests, 100, machine=wrong)
        assert ours.speed(20) >= 0.85 * right.speed(20) and ours.speed(40) >= 0.97 * right.speed(40)


@pytest.mark.parametrize("factor", [3.0, 0.3])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_machine_that_was_busy_at_start_is_understood(role: str, factor: float) -> None:
    """With four requests more numbers of rows have to be tried."""
    if role == "target":
        machine = Machine(timed_target_s=[factor * each for each in TARGET_S])
    else:
        machine = Machine(timed_draft_s=[factor * each for each in DRAFT_S])
    for num_requests, begin in ((1, 20), (4, 40)):
        ours, right = play(num_requests, 100, machine=machine), play(num_requests, 100)
        assert ours.speed(begin) >= 0.97 * right.speed(begin)


def test_noise_does_not_keep_drafts_short_that_are_always_right() -> None:
    """One slow step of a number of rows must not make it, or all greater ones, look dear for long."""
    machine = Machine(VNNI_TARGET_S, VNNI_DRAFT_S, VNNI_TARGET_S, VNNI_DRAFT_S, noise=0.15)
    best = max(play(1, 50, lambda number: 1e9, fixed=fixed, machine=machine).speed() for fixed in range(9))
    speeds = [play(1, 200, lambda number: 1e9, machine=machine, seed=seed).speed(50) for seed in range(8)]
    print([round(speed / best, 3) for speed in speeds])
    assert np.mean(speeds) >= 0.91 * best


def test_a_draft_that_becomes_slower_is_given_up_within_ten_rounds() -> None:
    played = play(1, 1500, machine=Machine(slow_draft=range(40, 1500)))
    assert np.mean(played.verified[:40]) > 1
    assert np.mean(played.verified[50:120]) < 0.2
    assert played.speed(60) >= 0.95 * play(1, 60, fixed=0).speed()


def test_a_draft_that_was_slower_for_a_moment_is_taken_up_again() -> None:
    """Another program had the cores for a second, and without a step of the draft nobody sees it end."""
    played = play(1, 600, machine=Machine(slow_draft=range(40, 50)))
    assert np.mean(played.verified[55:100]) < 0.2
    assert np.mean(played.verified[500:]) > 0.7 * np.mean(played.verified[20:40])


def test_no_request_is_slowed_down_much_for_another_one() -> None:
    """A request whose text is looked up could have many rows, which all the others would wait for."""
    lengths = lengths_of()
    sure = lengths.begin(np.tile(np.arange(9, dtype=np.int32), 4))
    alone = len(sure.next_round(100).complete(None).token_ids)
    for number in range(7):
        lengths.begin(np.full(1, number, np.int32)).note_refusal()
    assert len(sure.next_round(100).complete(None).token_ids) < alone


def test_a_round_is_a_step_whoever_begins_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = lengths_of()
    num_rounds = 0
    begin_round = lengths._begin_round

    def count() -> None:
        nonlocal num_rounds
        num_rounds += 1
        begin_round()

    monkeypatch.setattr(lengths, "_begin_round", count)
    requests = [lengths.begin(NO_TOKENS) for _ in range(4)]
    for _ in range(3):
        for request in requests:
            lengths.aim(request)
    assert num_rounds == 3
    lengths.end(requests.pop())
    assert all(lengths.aim(request) for request in requests)
    assert num_rounds == 4


def test_a_round_near_the_end_of_the_budget_drafts_less() -> None:
    request = lengths_of().begin(NO_TOKENS)
    most = [request.next_round(remaining).max_tokens for remaining in (1, 2, 5, 100)]
    assert most == [0, 1, 4, MAX_DRAFT_LEN]


def test_tokens_that_are_not_worth_their_row_are_not_verified() -> None:
    request = lengths_of().begin(NO_TOKENS)
    plan = request.next_round(100)
    unsure = np.array([9.0, 9.0, 0.01, 0.01, 0.01, 0.01], np.float32)
    drafted = Output(np.arange(6, dtype=np.int32), "length", True, gaps=unsure)
    assert 2 <= len(plan.complete(drafted).token_ids) < 5


# What the draft has to read.


def test_a_long_prompt_is_not_read_by_the_draft_for_a_short_answer() -> None:
    assert lengths_of().begin(np.arange(64, dtype=np.int32)).next_round(1000).max_tokens
    long = np.arange(8_000, dtype=np.int32)
    assert not lengths_of().begin(long).next_round(1000).max_tokens
    assert lengths_of(num_read=7_950).begin(long).next_round(1000).max_tokens


def test_it_is_read_when_the_answer_has_become_long() -> None:
    request = lengths_of().begin(np.arange(8_000, dtype=np.int32))
    request.observe(NO_DRAFT.complete(None), np.arange(10_000, 15_000, dtype=np.int32))
    assert request.next_round(5_000).max_tokens


def test_a_prompt_is_not_read_for_the_last_tokens_of_an_answer() -> None:
    request = lengths_of().begin(np.arange(64, dtype=np.int32))
    assert request.next_round(1000).max_tokens and not request.next_round(4).max_tokens


def test_steps_that_nobody_tried_are_as_much_slower_as_those_that_were() -> None:
    times = StepTimes(ROWS, TARGET_S)
    tried_s, more_s = map(times.seconds, (8, 12))
    for _ in range(30):
        times.observe(8, 1.5 * tried_s)
    assert times.seconds(12) >= times.seconds(8) + 0.99 * (more_s - tried_s)


def test_one_slow_step_changes_all_times_and_not_which_is_faster() -> None:
    times = StepTimes(ROWS, TARGET_S)
    for _ in range(30):
        times.observe(4, TARGET_S[2])
        times.observe(8, TARGET_S[3])
    before = [*map(times.seconds, (4, 8))]
    times.observe(4, 1.6 * TARGET_S[2])
    after = [*map(times.seconds, (4, 8))]
    assert min(after) > min(before) and after[1] > 1.02 * before[1]
    assert after[1] / after[0] > 0.98 * before[1] / before[0]


# Lookup.


def test_a_round_that_was_to_look_up_does_not_call_the_draft_instead() -> None:
    """The first request to ask begins the round: what the others wrote in the one before is not known yet."""
    lengths = lengths_of()
    first = lengths.begin(np.arange(200, 230, dtype=np.int32))
    second = lengths.begin(np.tile(np.arange(9, dtype=np.int32), 4))
    for request in (first, second):
        request.next_round(100)  # a trial
    first.observe(Proposal(NO_TOKENS, None), np.array([300], np.int32))
    first.next_round(100)
    second.observe(Proposal(NO_TOKENS, None), np.array([100], np.int32))  # nothing matches now
    assert second.next_round(100).max_tokens == 0


def test_text_that_repeats_is_looked_up_instead_of_drafted() -> None:
    request = lengths_of().begin(np.tile(np.arange(9, dtype=np.int32), 4))
    plan = request.next_round(100)
    assert plan.max_tokens == 0
    found = plan.complete(None).token_ids.tolist()
    assert len(found) > 2 and found == list(range(len(found)))
    request.observe(Proposal(NO_TOKENS, None), np.array([100], np.int32))  # nothing matches now
    assert request.next_round(100).max_tokens > 0


def test_drafts_are_looked_up_in_earlier_answers_of_the_session() -> None:
    lengths = lengths_of()
    earlier, prompt = np.arange(100, 140, dtype=np.int32), np.array([7, 8, 9, *range(106, 113)], np.int32)
    request = lengths.begin(prompt, earlier)
    found = request.next_round(100).complete(None).token_ids.tolist()
    assert found and found == list(range(113, 113 + len(found)))
    assert not len(lengths.begin(prompt).lookup.propose(8).token_ids)
    assert not len(lengths.begin(prompt, earlier, sees_gaps=False).lookup.propose(8).token_ids)


def test_drafts_are_looked_up_in_the_prediction() -> None:
    prompt, prediction = np.array([7, 8, 9], np.int32), np.arange(100, 140, dtype=np.int32)
    request = lengths_of().begin(prompt, prediction_ids=prediction)
    request.observe(Proposal(NO_TOKENS, None), prediction[:4])
    found = request.next_round(100).complete(None)
    assert found.token_ids.tolist() == list(range(104, 104 + found.num_predicted)) and found.num_predicted > 2
    forced = found.behind(np.array([1], np.int32), 8)
    assert (forced.token_ids.tolist(), forced.num_predicted) == ([1], 0)


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


def test_a_request_that_the_draft_refuses_is_looked_up() -> None:
    lengths = lengths_of()
    refused = lengths.begin(NO_TOKENS)
    assert refused.next_round(100).max_tokens
    refused.note_refusal()
    assert not refused.next_round(100).max_tokens
    assert sum(rounds_with_lookups(refused, itertools.count(1), 40)) == 0, "nothing repeats yet"
    repeated = rounds_with_lookups(refused, itertools.cycle(range(500, 520)), 60)
    assert np.mean(repeated[-20:]) > 0.8 * MAX_DRAFT_LEN
    assert sum(rounds_with_lookups(refused, itertools.count(1000), 60)[-40:]) == 0


# The ratio rule, with which a length must not depend on the tokens that it cuts off.


def test_with_the_ratio_rule_a_length_is_known_before_the_first_token() -> None:
    request = lengths_of().begin(NO_TOKENS, sees_gaps=False)
    plan = request.next_round(100)
    assert plan.max_tokens > 0 and plan.keep_drafting is None
    drafted = Output(np.arange(plan.max_tokens, dtype=np.int32), "length", True)
    assert len(plan.complete(drafted).token_ids) == plan.max_tokens


def test_with_the_ratio_rule_a_refused_request_drafts_nothing() -> None:
    request = lengths_of().begin(np.tile(np.arange(9, dtype=np.int32), 4), sees_gaps=False)
    request.note_refusal()
    assert isinstance(request, RequestDraftLength)
    plan = request.next_round(100)
    assert plan.max_tokens == 0 and not len(plan.complete(None).token_ids)


def test_with_the_ratio_rule_a_request_refused_in_this_round_drafts_nothing() -> None:
    lengths = lengths_of()
    first, second = (lengths.begin(NO_TOKENS, sees_gaps=False) for _ in range(2))
    for request in (first, second):
        request.next_round(100)  # a trial
    assert first.next_round(100).max_tokens
    second.note_refusal()
    assert not second.next_round(100).max_tokens


def test_with_the_ratio_rule_the_length_follows_acceptance_too() -> None:
    played = play(1, 600, lambda number: float(number >= 150), sees_gaps=False)
    assert sum(played.verified[100:150]) <= 5
    assert np.mean(played.verified[500:]) > 1
