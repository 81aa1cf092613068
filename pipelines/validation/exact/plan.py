"""Plan the passes of a proof: twelve fixed combinations of all that a request and a server can vary.

A pass sends many prompts in one way. Each kind of sampling runs with the draft length that the server
chooses and with all fixed lengths in turn. Streaming, arrivals, cancellations and the prefix cache meet each
kind, and each other, in every combination of two. The target alone runs under load (A/A), which tells a
difference due to speculation from one of the runtime, and the ensemble runs too. Every round of the twelve
asks further prompts under other loads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipelines.client import CompletionRequest
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.validation.exact.sampling_kinds import (
    GREEDY,
    GREEDY_PARAMETERS,
    KINDS,
    SEEDED,
    SEEDED_PARAMETERS,
    request_of,
)

ADAPTIVE = "adaptive"
"""Draft length in answers if the server chooses it in each round."""

LOADS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class DraftLength:
    """Draft lengths of the requests of a pass, in turn.

    Attributes:
        name: Name in reports; "" for the target alone.
        requested: ``num_draft_tokens`` of the requests; None leaves the choice to the server.
        used: What the answers must report: ``ADAPTIVE``, a number, or "" for the target alone.
    """

    name: str
    requested: tuple[int | None, ...]
    used: tuple[str, ...]

    @classmethod
    def of_server(cls, used: str) -> DraftLength:
        """Return the one that the server chooses, or that its recipe fixes."""
        return cls(used if used in (ADAPTIVE, "") else f"the server's {used}", (None,), (used,))

    @classmethod
    def all_fixed(cls, longest: int) -> DraftLength:
        """Return all fixed ones; 0 runs the loop without a draft."""
        lengths = tuple(range(longest + 1))
        return cls(f"0-{longest}", lengths, tuple(map(str, lengths)))

    def requested_at(self, place: int) -> int | None:
        """Return the one of a request by its place in the pass."""
        return self.requested[place % len(self.requested)]

    def used_at(self, place: int) -> str:
        """Return what the answer at that place must report."""
        return self.used[place % len(self.used)]


NO_DRAFT = DraftLength.of_server("")
"""Draft length of the target alone."""


@dataclass(frozen=True)
class ProofPlan:
    """Plan of a proof.

    Attributes:
        prompts: Prompts, at least two: half of them use default parameters, half others.
        default_length: Draft length of requests that name none.
        fixed_lengths: All that a request may name.
        loads: Numbers of concurrent requests, rising.
        most_tokens: Most output tokens of an answer, unless more are asked for.
        mean_gap_s: Mean time that each worker waits between two requests if arrivals are staggered.
        max_rate: Share of diverging prompts that must be detected with 95 % probability; else the proof is
            inconclusive.
        kinds: Kinds of sampling, those of ``KINDS`` for which the server drafts.
    """

    prompts: tuple[Prompt, ...]
    default_length: DraftLength
    fixed_lengths: DraftLength
    loads: tuple[int, ...]
    most_tokens: int
    mean_gap_s: float
    max_rate: float
    kinds: tuple[str, ...] = KINDS


@dataclass(frozen=True)
class Pass:
    """One combination.

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
        draft = "" if self.draft_length == NO_DRAFT else f" k={self.draft_length.name}"
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


_CHOSEN, _FIXED = True, False
_COMBINATIONS: tuple[tuple[str, str, bool, int, str], ...] = (
    # Model, kind of sampling, does the server choose the draft length, place among the loads (0 the lowest,
    # -1 the highest), and what else holds: staggered, streamed, cancels, cold. The ensemble finishes a
    # request whose client has left, so cancelled ones would take the places of those that are compared.
    (SPECULATIVE, GREEDY, _CHOSEN, 0, ""),
    (TARGET_ALONE, GREEDY_PARAMETERS, _CHOSEN, -1, "cancels cold"),
    (SPECULATIVE, SEEDED_PARAMETERS, _FIXED, -3, "staggered cold"),
    (ENSEMBLE, SEEDED_PARAMETERS, _CHOSEN, 1, "streamed"),
    (SPECULATIVE, GREEDY_PARAMETERS, _CHOSEN, -1, "cancels cold"),
    (SPECULATIVE, SEEDED, _FIXED, -1, "streamed cold"),
    (SPECULATIVE, GREEDY, _FIXED, 1, "staggered streamed cancels cold"),
    (TARGET_ALONE, SEEDED_PARAMETERS, _CHOSEN, -3, "staggered streamed"),
    (SPECULATIVE, SEEDED, _CHOSEN, 0, "staggered cancels"),
    (SPECULATIVE, GREEDY_PARAMETERS, _FIXED, -2, "staggered streamed"),
    (ENSEMBLE, GREEDY_PARAMETERS, _FIXED, -2, "staggered cold"),
    (SPECULATIVE, SEEDED_PARAMETERS, _CHOSEN, -2, "streamed cancels"),
)
NUM_COMBINATIONS = len(_COMBINATIONS)
NUM_SPECULATIVE = sum(model == SPECULATIVE for model, *_ in _COMBINATIONS)
"""How many of them ask ``generate``, with each kind equally often."""


def pass_of(plan: ProofPlan, number: int) -> Pass:
    """Return a pass by its number, any from 0."""
    turn, place = divmod(number, NUM_COMBINATIONS)
    model, kind, is_chosen, load, words = _COMBINATIONS[place]
    # The target alone at one request is the reference.
    loads = plan.loads if model != TARGET_ALONE else plan.loads[1:] or plan.loads
    length = plan.default_length if is_chosen else plan.fixed_lengths
    return Pass(
        number=number,
        model=model,
        kind=kind if kind in plan.kinds else plan.kinds[0],
        draft_length=NO_DRAFT if model == TARGET_ALONE else length,
        num_at_once=loads[(load + turn) % len(loads)],
        is_staggered="staggered" in words,
        is_streaming="streamed" in words,
        with_cancellations="cancels" in words,
        is_cold="cold" in words,
    )


@dataclass(frozen=True)
class Portion:
    """How much a pass asks.

    Attributes:
        first: Number of the first prompt among those of its kind, which begin anew after the last.
        num_prompts: Number of prompts; a pass with more concurrent requests asks as many as these.
        max_tokens: Most output tokens per answer.
    """

    first: int
    num_prompts: int
    max_tokens: int


def questions_of(plan: ProofPlan, asked: Pass, portion: Portion, nonce: str) -> tuple[Question, ...]:
    """Build the requests of a pass.

    Args:
        plan: Plan of the proof.
        asked: Pass.
        portion: How much it asks.
        nonce: Text that is unique to this run.
    """
    pool = pool_of(plan, asked.kind)
    questions = []
    for place in range(max(min(portion.num_prompts, len(pool)), asked.num_at_once)):
        index, prompt = pool[(portion.first + place) % len(pool)]
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
