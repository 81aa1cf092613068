"""Tests of the loop with a scripted draft and target that count their calls."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.speculation import loop
from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftPlan, FixedDraftLength
from pipelines.speculation.lookup.prompt_lookup import PromptLookup
from pipelines.speculation.loop import TOKEN_SOURCES, Round, speculate
from pipelines.speculation.proposal import Proposal
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import TokenIds, count_accepted

PROMPT = [7, 8, 9]


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass
class ScriptedTarget:
    """A target that knows the whole output and verifies by comparing with it."""

    output: list[int]
    end_id: int | None = None
    calls: list[GenerationRequest] = field(default_factory=list)

    async def __call__(self, request: GenerationRequest) -> Output:
        self.calls.append(request)
        done = len(request.input_ids) - len(PROMPT)
        assert request.input_ids.tolist() == PROMPT + self.output[:done]
        assert request.num_prompt_tokens == len(PROMPT)
        assert request.max_tokens == len(request.draft_input_ids) + 1
        expected = ids(self.output[done : done + request.max_tokens])
        new = expected[: count_accepted(request.draft_input_ids, expected) + 1].tolist()
        if self.end_id in new:
            return Output(ids(new[: new.index(self.end_id)]), "stop", True)
        return Output(ids(new), "", True)


@dataclass
class ScriptedDraft:
    """A draft that proposes from a fixed text at the same positions."""

    output: list[int]
    calls: list[GenerationRequest] = field(default_factory=list)

    async def __call__(self, request: GenerationRequest) -> Output:
        self.calls.append(request)
        done = len(request.input_ids) - len(PROMPT)
        return Output(ids(self.output[done : done + request.max_tokens]), "length", True)


def run(draft: ScriptedDraft, target: ScriptedTarget, max_tokens: int, num_draft_tokens: int) -> list[Round]:
    async def collect() -> list[Round]:
        request = GenerationRequest("test", ids(PROMPT), max_tokens)
        return [part async for part in speculate(request, draft, target, FixedDraftLength(num_draft_tokens))]

    return asyncio.run(collect())


def tokens(rounds: list[Round]) -> list[int]:
    return np.concatenate([part.token_ids for part in rounds]).tolist()


def test_full_acceptance_adds_a_bonus_token_each_round() -> None:
    text = list(range(1, 12))
    rounds = run(ScriptedDraft(text), ScriptedTarget(text), 11, 4)
    assert [part.token_ids.tolist() for part in rounds] == [[1], [2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
    assert [part.num_accepted_tokens for part in rounds] == [0, 4, 4]
    assert rounds[1].accepted_mask.tolist() == [True, True, True, True, False]
    assert [TOKEN_SOURCES[source] for source in rounds[1].token_sources] == ["draft_model"] * 4 + ["target"]


@pytest.mark.parametrize(
    ("num_accepted", "num_forced", "num_by_model", "sources"),
    [
        (5, 2, 2, "ggmml t"),
        (5, 0, 1, "mllll t"),
        (3, 2, 2, "ggm t"),
        (1, 2, 2, "g t"),
        (0, 2, 2, " t"),
        (2, 0, 0, "ll t"),
    ],
)
def test_each_token_has_the_source_that_drafted_it(
    num_accepted: int, num_forced: int, num_by_model: int, sources: str
) -> None:
    ids = np.zeros(num_accepted + 1, np.int32)
    outcome = Round(ids, 5, num_accepted, "", num_forced, num_by_model)
    letters = {"target": "t", "draft_model": "m", "lookup": "l", "grammar": "g"}
    found = [letters[TOKEN_SOURCES[source]] for source in outcome.token_sources]
    assert "".join(found) == sources.replace(" ", "")
    totals = SpeculationStatistics(5)
    totals.add_round(outcome)
    counted = {letters[name]: count for name, count in totals.tokens_by_source.items() if count}
    assert counted == Counter(found)


def test_a_rejection_is_followed_by_the_recovered_token() -> None:
    target = ScriptedTarget([1, 2, 3, 4, 5, 6, 7, 8])
    draft = ScriptedDraft([1, 2, 99, 4, 5, 99, 7, 8])
    rounds = run(draft, target, 8, 3)
    assert [part.token_ids.tolist() for part in rounds] == [[1], [2, 3], [4, 5, 6], [7, 8]]
    assert [part.num_accepted_tokens for part in rounds] == [0, 1, 2, 1]


def test_the_draft_length_is_clipped_to_the_budget() -> None:
    text = list(range(1, 9))
    draft = ScriptedDraft(text)
    rounds = run(draft, ScriptedTarget(text), 8, 5)
    assert [part.num_draft_tokens for part in rounds] == [0, 5, 0]
    assert [call.max_tokens for call in draft.calls] == [5]
    assert rounds[-1].finish_reason == "length"


def test_the_output_ends_among_the_draft_tokens() -> None:
    rounds = run(ScriptedDraft([1, 2, 3, 0, 5, 6]), ScriptedTarget([1, 2, 3, 0, 5, 6], end_id=0), 6, 4)
    assert tokens(rounds) == [1, 2, 3]
    assert rounds[-1].finish_reason == "stop" and rounds[-1].num_accepted_tokens == 2


@given(
    output=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    noise=st.lists(st.integers(0, 3), max_size=40),
    num_draft_tokens=st.integers(0, 9),
)
def test_any_draft_gives_the_output_of_the_target(
    output: list[int], noise: list[int], num_draft_tokens: int
) -> None:
    draft, target = ScriptedDraft(noise), ScriptedTarget(output)
    rounds = run(draft, target, len(output), num_draft_tokens)
    assert tokens(rounds) == output and len(target.calls) == len(rounds)
    assert not draft.calls or (num_draft_tokens and len(output) > 1)
    assert [bool(part.finish_reason) for part in rounds] == [False] * (len(rounds) - 1) + [True]


def test_statistics_by_hand() -> None:
    statistics = SpeculationStatistics(max_draft_len=4)
    for drafted, accepted in [(0, 0), (4, 4), (4, 1), (2, 0)]:
        statistics.add_round(Round(ids([1] * (accepted + 1)), drafted, accepted, ""))
    assert (statistics.total_accepted_draft_tokens, statistics.total_draft_tokens) == (5, 10)
    assert (statistics.num_rounds, statistics.num_drafting_rounds) == (4, 3)
    assert statistics.accepted_per_position == [2, 1, 1, 1]


async def test_what_is_looked_up_is_verified_like_what_is_drafted() -> None:
    """A draft length may find its tokens in the text: no call of the draft, the same output."""

    class LooksUp:
        max_draft_len = 4

        def __init__(self) -> None:
            self.lookup = PromptLookup(ids(PROMPT))

        def next_round(self, num_remaining: int) -> DraftPlan:
            found = self.lookup.propose(min(4, num_remaining - 1))
            return replace(NO_DRAFT, complete=lambda drafted: Proposal(found, drafted))

        def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
            assert proposal.drafted is None
            self.lookup.append(token_ids)

    output = [1, 2, 3, 4] * 10 + [9, 9, 9, 1, 2, 3, 4, 5]
    draft, target = ScriptedDraft([]), ScriptedTarget(output)
    request = GenerationRequest("test", ids(PROMPT), len(output))
    rounds = [part async for part in speculate(request, draft, target, LooksUp())]
    assert tokens(rounds) == output
    assert not draft.calls
    assert len(rounds) < len(output) / 2
    assert not any(part.num_by_model for part in rounds)
    assert sum(part.num_accepted_tokens for part in rounds) == len(output) - len(rounds)


@dataclass
class ForcedText:
    """A grammar that forces the whole output; counts its calls, which wait if they must."""

    output: list[int]
    may_end: threading.Event = field(default_factory=threading.Event)
    num_calls: int = 0
    slow_s: float = 0.0

    def forced_after(self, output_ids: TokenIds) -> TokenIds:
        self.num_calls += 1
        assert self.may_end.wait(60)
        return ids(self.output[len(output_ids) :])


def run_forced(grammar: ForcedText, output: list[int], on_round: Callable[[int], None]) -> list[Round]:
    async def collect() -> list[Round]:
        request = GenerationRequest("test", ids(PROMPT), len(output), grammar=grammar)  # type: ignore[arg-type]
        rounds: list[Round] = []
        async for part in speculate(request, ScriptedDraft([]), ScriptedTarget(output), FixedDraftLength(4)):
            rounds.append(part)
            on_round(len(rounds))
        return rounds

    return asyncio.run(collect())


def test_the_tokens_of_a_forced_text_are_computed_once() -> None:
    """Else a text of 250 KB is cut into tokens in each round, before all other requests."""
    output = list(range(1, 42))
    grammar = ForcedText(output)
    grammar.may_end.set()
    rounds = run_forced(grammar, output, lambda number: None)
    assert tokens(rounds) == output and grammar.num_calls == 1
    assert sum(part.num_forced for part in rounds) == len(output) - len(rounds)


def test_nothing_is_drafted_while_masks_are_slow() -> None:
    """Each draft token would need another of them."""
    output = list(range(1, 12))
    grammar = ForcedText(output, slow_s=0.01)
    grammar.may_end.set()

    def be_quick_after_five(number: int) -> None:
        grammar.slow_s *= number < 5

    rounds = run_forced(grammar, output, be_quick_after_five)
    assert tokens(rounds) == output and grammar.num_calls == 1
    assert [part.num_draft_tokens for part in rounds] == [0] * 5 + [4, 0]


def test_rounds_go_on_without_forced_tokens_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FORCED_S", 0.001)
    output = list(range(1, 42))
    grammar = ForcedText(output)

    def end_after_ten(number: int) -> None:
        if number == 10:
            monkeypatch.setattr(loop, "_FORCED_S", 60.0)
            grammar.may_end.set()

    rounds = run_forced(grammar, output, end_after_ten)
    assert tokens(rounds) == output and grammar.num_calls == 1
    assert not any(part.num_forced for part in rounds[:10]) and rounds[10].num_forced == 4
