"""Plan the passes of a proof, which cover every pair of levels of all dimensions.

A pass sends many prompts in one way. The dimensions are sampling, draft length, load, arrivals, streaming,
concurrent cancellations, and prefix cache; ``covering_array`` chooses the combinations. The target alone runs
under the same loads (A/A), which distinguishes a difference due to speculation from one of the runtime.
The ensemble runs once with each kind of sampling. The first passes have every level (``num_core_passes``).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.client import CompletionRequest
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.validation.exact.sampling_kinds import KINDS, request_of

ADAPTIVE = "adaptive"
"""Draft length in answers if the server chooses it in each round."""

LOADS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class DraftLength:
    """Draft length of the requests of a pass, and the one that answers must report.

    Attributes:
        num_draft_tokens: Value in the request; None leaves the choice to the server.
        used: Value that each answer must report: ``ADAPTIVE``, a number, or "" for the target alone.
    """

    num_draft_tokens: int | None
    used: str

    def __str__(self) -> str:
        is_fixed_by_server = self.num_draft_tokens is None and self.used not in (ADAPTIVE, "")
        return f"the server's {self.used}" if is_fixed_by_server else self.used


NO_DRAFT = DraftLength(None, "")
"""Draft length of the target alone."""


@dataclass(frozen=True)
class ProofPlan:
    """Plan of a proof.

    Attributes:
        prompts: Prompts, at least two: half of them use default parameters, half others.
        draft_lengths: Draft lengths to test; 0 runs the loop without a draft.
        loads: Numbers of concurrent requests.
        most_tokens: Most output tokens of an answer, unless more are asked for.
        mean_gap_s: Mean time that each worker waits between two requests if arrivals are staggered.
        max_rate: Share of diverging prompts that must be detected with 95 % probability; else the proof is
            inconclusive.
        kinds: Kinds of sampling, those of ``KINDS`` for which the server drafts.
    """

    prompts: tuple[Prompt, ...]
    draft_lengths: tuple[DraftLength, ...]
    loads: tuple[int, ...]
    most_tokens: int
    mean_gap_s: float
    max_rate: float
    kinds: tuple[str, ...] = KINDS


@dataclass(frozen=True)
class Pass:
    """One combination of levels.

    Attributes:
        number: Number of the pass from 0, which seeds its randomness.
        model: ``generate``, ``generate_target`` or ``ensemble``.
        kind: Kind of sampling, one of ``KINDS``.
        draft_length: Draft length; ``NO_DRAFT`` for the target alone.
        num_at_once: Number of concurrent requests.
        is_staggered: Whether requests arrive at random times, not all together.
        is_streaming: Whether answers are streamed.
        with_cancellations: Whether other requests start and are cancelled meanwhile.
        is_cold: Whether the server has never seen these prompts; else each was sent just before.
    """

    number: int
    model: str
    kind: str
    draft_length: DraftLength
    num_at_once: int
    is_staggered: bool
    is_streaming: bool
    with_cancellations: bool
    is_cold: bool

    def __str__(self) -> str:
        draft = "" if self.draft_length == NO_DRAFT else f" k={self.draft_length}"
        words = [
            f"{self.model}{draft} {self.kind} x{self.num_at_once}",
            "staggered" if self.is_staggered else "",
            "streamed" if self.is_streaming else "",
            "cancels" if self.with_cancellations else "",
            "cold" if self.is_cold else "warm",
        ]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Question:
    """One request of a pass.

    Attributes:
        prompt: Prompt of the request.
        request: Request for the target alone; ``generate`` gets ``num_draft_tokens`` in addition.
    """

    prompt: Prompt
    request: CompletionRequest


def passes_of(plan: ProofPlan) -> tuple[Pass, ...]:
    """List all passes: the target alone under load, draft and target together, and the ensemble in turns."""
    turns = [
        (place / num_core, asked) for passes, num_core in _groups(plan) for place, asked in enumerate(passes)
    ]
    in_turn = sorted(turns, key=lambda turn: turn[0])
    return tuple(replace(asked, number=number) for number, (_, asked) in enumerate(in_turn))


def num_core_passes(plan: ProofPlan) -> int:
    """Return how many of the first passes have every level of each dimension."""
    return sum(min(num_core, len(passes)) for passes, num_core in _groups(plan))


def _groups(plan: ProofPlan) -> tuple[tuple[tuple[Pass, ...], int], ...]:
    """Return the passes of each model, and how many of the first of them have every level."""
    concurrent_loads = tuple(load for load in plan.loads if load > 1) or plan.loads
    alone = _combinations(TARGET_ALONE, plan.kinds, (NO_DRAFT,), concurrent_loads)
    together = _combinations(SPECULATIVE, plan.kinds, plan.draft_lengths, plan.loads)
    widest = max(map(len, (plan.kinds, plan.draft_lengths, plan.loads)))
    return (
        (alone, max(len(plan.kinds), len(concurrent_loads))),
        (together, widest),
        (_through_ensemble(plan), len(plan.kinds)),
    )


def _combinations(
    model: str, kinds: tuple[str, ...], draft_lengths: Sequence[DraftLength], loads: tuple[int, ...]
) -> tuple[Pass, ...]:
    rows = covering_array((len(kinds), len(draft_lengths), len(loads), 2, 2, 2, 2))
    return tuple(
        Pass(
            number=0,
            model=model,
            kind=kinds[row[0]],
            draft_length=draft_lengths[row[1]],
            num_at_once=loads[row[2]],
            is_staggered=bool(row[3]),
            is_streaming=bool(row[4]),
            with_cancellations=bool(row[5]),
            is_cold=bool(row[6]),
        )
        for row in rows
    )


def _through_ensemble(plan: ProofPlan) -> tuple[Pass, ...]:
    """Build one pass for each kind of sampling, at one of the highest loads; every other one is streamed.

    They run without cancellations: the ensemble finishes a request whose client has left, so cancelled
    requests would take the places of those that are compared.
    """
    return tuple(
        Pass(
            number=0,
            model=ENSEMBLE,
            kind=kind,
            draft_length=plan.draft_lengths[-1],
            num_at_once=plan.loads[-1 - place % len(plan.loads)],
            is_staggered=False,
            is_streaming=place % 2 == 0,
            with_cancellations=False,
            is_cold=False,
        )
        for place, kind in enumerate(plan.kinds)
    )


@dataclass(frozen=True)
class Portion:
    """How much a pass asks.

    Attributes:
        first: Number of the first prompt among those of its kind, which begin anew after the last.
        num_prompts: Number of different prompts.
        max_tokens: Most output tokens per answer.
    """

    first: int
    num_prompts: int
    max_tokens: int


def questions_of(plan: ProofPlan, asked: Pass, portion: Portion, nonce: str) -> tuple[Question, ...]:
    """Build the requests of a pass, at least as many as are concurrent.

    Args:
        plan: Plan of the proof.
        asked: Pass.
        portion: How much it asks.
        nonce: Text that is unique to this run.
    """
    pool = pool_of(plan, asked.kind)
    count = min(portion.num_prompts, len(pool))
    questions = []
    for place in range(max(count, asked.num_at_once)):
        # A pass with too few prompts repeats them, to reach its load; a cold cache has never seen any.
        index, prompt = pool[(portion.first + (place if asked.is_cold else place % count)) % len(pool)]
        text = f"# {nonce} {asked.number}-{place}\n{prompt.text}" if asked.is_cold else prompt.text
        request = request_of(asked.kind, index, replace(prompt, text=text), portion.max_tokens)
        questions.append(Question(prompt, request))
    return tuple(questions)


def pool_of(plan: ProofPlan, kind: str) -> list[tuple[int, Prompt]]:
    """Return the prompts of a kind with their indices.

    Greedy passes use half of the prompts with default parameters and half with others; seeded passes the
    other way round. So each prompt has two requests. If there is only one kind, it uses all prompts.
    """
    first = {"greedy": 0, "greedy, parameters": 1, "seeded": 1, "seeded, parameters": 0}[kind]
    return list(enumerate(plan.prompts))[first::2] if len(plan.kinds) > 1 else list(enumerate(plan.prompts))


Row = tuple[int, ...]
_Cell = tuple[int, int]  # dimension, level
_Pair = tuple[_Cell, _Cell]  # the lower dimension first
_Uses = Counter[tuple[_Cell, ...]]  # how often levels and pairs of levels were used


def covering_array(num_levels: Sequence[int]) -> tuple[Row, ...]:
    """Build rows of levels such that one of them contains each pair of levels of two dimensions.

    Most faults of systems with many settings depend on two of them at most; covering each pair takes tens of
    combinations where the full product has thousands. The construction is greedy (Cohen et al., "The AETG
    system", 1997) without its randomness: the same dimensions give the same array everywhere.

    Args:
        num_levels: Number of levels of each dimension, at least one each; at least two dimensions.

    Returns:
        Rows, where entry d is a level of dimension d, from 0. Levels and pairs are used about equally often.
    """
    if len(num_levels) < 2 or min(num_levels) < 1:
        raise ValueError(f"num_levels={tuple(num_levels)}: two dimensions of one level or more are needed")
    missing = pairs_of_levels(num_levels)
    uses: _Uses = Counter()
    rows = []
    while missing:
        row = _next_row(num_levels, missing, uses)
        rows.append(row)
        pairs = tuple(itertools.combinations(enumerate(row), 2))
        uses.update(pairs)
        uses.update((cell,) for cell in enumerate(row))
        missing.difference_update(pairs)
    return tuple(rows)


def pairs_of_levels(num_levels: Sequence[int]) -> set[_Pair]:
    """Return every pair of levels that ``covering_array`` must contain."""
    return {
        ((first, level), (second, other))
        for first, second in itertools.combinations(range(len(num_levels)), 2)
        for level in range(num_levels[first])
        for other in range(num_levels[second])
    }


def _next_row(num_levels: Sequence[int], missing: set[_Pair], uses: _Uses) -> Row:
    """Build a row from one missing pair by choosing the most useful level of each other dimension."""
    wanted: Counter[_Cell] = Counter()
    for pair in missing:
        wanted.update(pair)
    # Pairs of the widest dimensions determine the number of rows, so each row begins with one of them.
    first, second = min(missing, key=lambda pair: (-wanted[pair[0]] - wanted[pair[1]], pair))
    chosen = [first, second]
    widest_first = sorted(range(len(num_levels)), key=lambda dimension: (-num_levels[dimension], dimension))
    for dimension in widest_first:
        if dimension not in (first[0], second[0]):
            cells = [(dimension, level) for level in range(num_levels[dimension])]
            chosen.append(min(cells, key=lambda cell: (*_merit(cell, chosen, missing, uses), cell)))
    return tuple(level for _, level in sorted(chosen))


def _merit(cell: _Cell, chosen: Sequence[_Cell], missing: set[_Pair], uses: _Uses) -> tuple[int, int]:
    """Rank a level by the missing pairs it covers, then by its earlier uses; lower is better."""
    pairs = [(min(cell, other), max(cell, other)) for other in chosen]
    return -sum(pair in missing for pair in pairs), uses[(cell,)] + sum(uses[pair] for pair in pairs)
