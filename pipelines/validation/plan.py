"""What is asked: passes that bring every two levels of all dimensions together, and how much of each.

A pass asks many prompts in one way. The dimensions are how tokens are chosen, the draft length, the load,
how requests arrive, streaming, cancellations beside them, and the prefix cache; ``covering_array`` picks
the combinations. The target alone goes through the same loads (A against A), so that a difference can be
told from the runtime's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.client import CompletionRequest
from pipelines.prompts import Prompt
from pipelines.validation.covering import covering_array
from pipelines.validation.sampling_kinds import KINDS, request_of

TARGET_ALONE = "generate_target"
SPECULATIVE = "generate"

ADAPTIVE = "adaptive"
"""What answers say of a draft length that the server chooses from round to round."""

LOADS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Goal:
    """What must have been compared before equality counts as shown.

    Attributes:
        max_rate: If this share of prompts diverged, at least one divergence would have been seen with
            95 % probability.
        num_tokens: Compared greedily, and as many again with seeds.
    """

    max_rate: float
    num_tokens: int


@dataclass(frozen=True)
class DraftLength:
    """What the requests of a pass say about drafting, and what the server makes of it.

    Attributes:
        num_draft_tokens: In the request; None leaves it to the server.
        used: What each answer has to say: ``ADAPTIVE`` or a number, which a server may have fixed for
            requests that do not say; "" from the target alone.
    """

    num_draft_tokens: int | None
    used: str

    def __str__(self) -> str:
        is_fixed_by_server = self.num_draft_tokens is None and self.used not in (ADAPTIVE, "")
        return f"the server's {self.used}" if is_fixed_by_server else self.used


NO_DRAFT = DraftLength(None, "")
"""Of the target alone."""


@dataclass(frozen=True)
class Plan:
    """How much is compared.

    Attributes:
        prompts: At least two: half of them are asked with plain parameters, half with others.
        max_tokens: Output tokens per answer at most.
        draft_lengths: Those to try; 0 runs the loop without a draft.
        loads: Numbers of requests at once.
        num_cold: Prompts of a pass with a cold cache: each needs an answer of the target of its own.
        num_alone: Prompts of a pass of the target alone.
        mean_gap_s: Where requests arrive at random times, each worker waits this long between two, on
            the average.
        goal: When the proof is complete.
        kinds: How tokens are chosen: those of ``KINDS`` in which the server drafts.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    draft_lengths: tuple[DraftLength, ...]
    loads: tuple[int, ...]
    num_cold: int
    num_alone: int
    mean_gap_s: float
    goal: Goal
    kinds: tuple[str, ...] = KINDS


@dataclass(frozen=True)
class Pass:
    """One way of asking.

    Attributes:
        number: From 0; seeds what is random in the pass.
        model: ``generate`` or ``generate_target``.
        kind: How tokens are chosen, one of ``KINDS``.
        draft_length: ``NO_DRAFT`` for the target alone.
        num_at_once: Requests at once.
        is_staggered: Whether requests arrive at random times, not all at once.
        is_streaming: Whether answers come in chunks.
        with_cancellations: Whether other requests begin and are cut off meanwhile.
        is_cold: Whether the server never saw these prompts; else each was asked just before.
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
        prompt: Where its text comes from.
        request: As it is sent to the target alone; ``generate`` gets ``num_draft_tokens`` besides.
    """

    prompt: Prompt
    request: CompletionRequest


def passes_of(plan: Plan) -> tuple[Pass, ...]:
    """All passes: the target alone under load first, then draft and target together."""
    loads_at_once = tuple(load for load in plan.loads if load > 1) or plan.loads
    alone = _ways(TARGET_ALONE, plan.kinds, (NO_DRAFT,), loads_at_once, first_number=0)
    together = _ways(SPECULATIVE, plan.kinds, plan.draft_lengths, plan.loads, first_number=len(alone))
    return (*alone, *together)


def _ways(
    model: str,
    kinds: tuple[str, ...],
    draft_lengths: Sequence[DraftLength],
    loads: tuple[int, ...],
    first_number: int,
) -> tuple[Pass, ...]:
    rows = covering_array((len(kinds), len(draft_lengths), len(loads), 2, 2, 2, 2))
    return tuple(
        Pass(
            number=number,
            model=model,
            kind=kinds[row[0]],
            draft_length=draft_lengths[row[1]],
            num_at_once=loads[row[2]],
            is_staggered=bool(row[3]),
            is_streaming=bool(row[4]),
            with_cancellations=bool(row[5]),
            is_cold=bool(row[6]),
        )
        for number, row in enumerate(rows, start=first_number)
    )


def questions_of(plan: Plan, asked: Pass, nonce: str) -> tuple[Question, ...]:
    """The requests of a pass, at least as many as it has at once.

    Half of the prompts belong to the plain parameters, half to the others, and the other way round with
    seeds; so each prompt has two requests, and every pass of a kind asks the same ones. A pass with a
    cold cache takes the next few of them, under a first line that no request had before. Where there is
    but one kind it is asked with all prompts.

    Args:
        plan: What to compare.
        asked: The pass.
        nonce: Text of this run, unique.
    """
    pool = pool_of(plan.prompts, asked.kind) if len(plan.kinds) > 1 else list(enumerate(plan.prompts))
    size = len(pool)
    if asked.is_cold:
        size = min(size, plan.num_cold)
    elif asked.model == TARGET_ALONE:
        size = min(size, plan.num_alone)
    start = asked.number * size if size < len(pool) else 0
    questions = []
    for place in range(max(size, asked.num_at_once)):
        # A pass that is short of prompts goes round, so that its load is what it says.
        index, prompt = pool[(start + (place if asked.is_cold else place % size)) % len(pool)]
        text = f"# {nonce} {asked.number}-{place}\n{prompt.text}" if asked.is_cold else prompt.text
        questions.append(Question(prompt, request_of(asked.kind, index, text, plan.max_tokens)))
    return tuple(questions)


def pool_of(prompts: Sequence[Prompt], kind: str) -> list[tuple[int, Prompt]]:
    """The prompts that a kind is asked with, each with its index."""
    first = {"greedy": 0, "greedy, parameters": 1, "seeded": 1, "seeded, parameters": 0}[kind]
    return list(enumerate(prompts))[first::2]
