"""Plan the passes of a proof: twelve fixed combinations of all that a request and a server can vary.

A pass sends many prompts in one way. Each kind of sampling runs with the draft length that the server
chooses and with all fixed lengths in turn. Streaming, arrivals, cancellations and the prefix cache meet each
kind, and each other, in every combination of two. The target alone runs under load (A/A), which tells a
difference due to speculation from one of the runtime, and the ensemble runs too. Every round of the twelve
asks further prompts under other loads.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipelines.client import CompletionRequest
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import VerificationError
from pipelines.validation.exact.sampling_kinds import (
    GREEDY,
    GREEDY_PARAMETERS,
    KINDS,
    SEEDED,
    SEEDED_PARAMETERS,
    request_of,
)
from pipelines.validation.size import MOST_TOKENS

ADAPTIVE = "adaptive"
"""Draft length in answers if the server chooses it in each round."""

LOADS = (1, 2, 4, 8, 16)

LEAST_PROMPTS = 2
"""Half of the prompts are asked with default parameters, and half with others."""

_MAX_RATE, _QUICK_MAX_RATE = 0.01, 0.25


@dataclass(frozen=True)
class DraftLength:
    """Draft lengths of the requests of a pass.

    Attributes:
        name: Name in reports; "" for the target alone.
        in_turn: For each request, in turn: its ``num_draft_tokens``, None to leave the choice to the server;
            and what the answer must report: ``ADAPTIVE``, a number, or "" for the target alone.
    """

    name: str
    in_turn: tuple[tuple[int | None, str], ...]

    @classmethod
    def of_server(cls, used: str) -> DraftLength:
        """Return the one that the server chooses, or that its recipe fixes."""
        return cls(used if used in (ADAPTIVE, "") else f"the server's {used}", ((None, used),))

    @classmethod
    def all_fixed(cls, longest: int) -> DraftLength:
        """Return all fixed ones; 0 runs the loop without a draft."""
        return cls(f"0-{longest}", tuple((length, str(length)) for length in range(longest + 1)))

    def at(self, place: int) -> tuple[int | None, str]:
        """Return what the request at that place of the pass asks for, and what its answer must report."""
        return self.in_turn[place % len(self.in_turn)]


NO_DRAFT = DraftLength.of_server("")
"""Draft length of the target alone."""


@dataclass(frozen=True)
class Limits:
    """What a server can be asked for.

    Attributes:
        max_draft_len: Most draft tokens per round of a fixed length; 0 without a draft model.
        max_requests: Most requests that run and wait.
        default_length: Draft length of requests that name none.
        most_tokens: Most output tokens of an answer for which there is room beside prompts.
        kinds: Kinds of sampling for which it drafts. TensorRT-LLM's engines draft for greedy requests only:
            other requests are answered by the target alone or have no equal there.
    """

    max_draft_len: int
    max_requests: int
    default_length: DraftLength
    most_tokens: int = MOST_TOKENS
    kinds: tuple[str, ...] = KINDS

    @classmethod
    def of(cls, parameters: Mapping[str, str], default_length: str) -> Limits:
        """Read the parameters of the model ``speculative``.

        Args:
            parameters: Parameters of the loaded model.
            default_length: Draft length that its answers report; no parameter, because it can change while
                the server runs.

        Raises:
            VerificationError: A parameter is missing or invalid.
        """
        has_draft = bool(parameters.get("draft_engine_dir", "of another version"))
        try:
            return cls(
                int(parameters["max_draft_len"]) if has_draft else 0,
                int(parameters["max_batch_size"]) + int(parameters["max_queue_size"]),
                DraftLength.of_server(default_length),
                min(MOST_TOKENS, int(parameters.get("max_seq_len", 4 * MOST_TOKENS)) // 4),
                (GREEDY,) if parameters.get("engine_access") == "tensorrt_llm" else KINDS,
            )
        except (KeyError, ValueError) as error:
            raise VerificationError(
                f"the limits of the server cannot be read: {error!r} in the parameters of the model "
                "speculative",
                "render the model repository again with 'draftproof repository'",
            ) from error

    @property
    def loads(self) -> tuple[int, ...]:
        """Numbers of concurrent requests, rising, that leave room for cancelled ones."""
        return tuple(load for load in LOADS if load < self.max_requests)


@dataclass(frozen=True)
class ProofPlan:
    """Plan of a proof.

    Attributes:
        prompts: Prompts, at least two: half of them use default parameters, half others.
        limits: Limits of the server.
        max_rate: Share of diverging prompts that must be detected with 95 % probability; else the proof is
            inconclusive.
        mean_gap_s: Mean time that each worker waits between two requests if arrivals are staggered.
    """

    prompts: tuple[Prompt, ...]
    limits: Limits
    max_rate: float
    mean_gap_s: float = 0.1

    @classmethod
    def of(cls, prompts: tuple[Prompt, ...], limits: Limits, *, is_quick: bool) -> ProofPlan:
        """Plan a proof of a server."""
        # Corpora alternate in file order; shuffling puts all of them into each half of the prompts.
        shuffled = random.Random(0).sample(prompts, len(prompts))
        return cls(tuple(shuffled), limits, _QUICK_MAX_RATE if is_quick else _MAX_RATE)


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
    limits = plan.limits
    # The target alone at one request is the reference.
    loads = limits.loads if model != TARGET_ALONE else limits.loads[1:] or limits.loads
    length = limits.default_length if is_chosen else DraftLength.all_fixed(limits.max_draft_len)
    return Pass(
        number=number,
        model=model,
        kind=kind if kind in limits.kinds else limits.kinds[0],
        draft_length=NO_DRAFT if model == TARGET_ALONE else length,
        num_at_once=loads[(load + turn) % len(loads)],
        is_staggered="staggered" in words,
        is_streaming="streamed" in words,
        with_cancellations="cancels" in words,
        is_cold="cold" in words,
    )


def questions_of(
    plan: ProofPlan, asked: Pass, first: int, num_prompts: int, max_tokens: int, nonce: str
) -> tuple[Question, ...]:
    """Build the requests of a pass.

    Args:
        plan: Plan of the proof.
        asked: Pass.
        first: Number of the first prompt among those of its kind, which begin anew after the last.
        num_prompts: Number of prompts; a pass with more concurrent requests asks as many as these.
        max_tokens: Most output tokens per answer.
        nonce: Text that is unique to this run.
    """
    pool = pool_of(plan, asked.kind)
    questions = []
    for place in range(max(min(num_prompts, len(pool)), asked.num_at_once)):
        index, prompt = pool[(first + place) % len(pool)]
        text = f"# {nonce} {asked.number}-{place}\n{prompt.text}" if asked.is_cold else prompt.text
        request = request_of(asked.kind, index, replace(prompt, text=text), max_tokens)
        questions.append(Question(prompt, request))
    return tuple(questions)


def pool_of(plan: ProofPlan, kind: str) -> list[tuple[int, Prompt]]:
    """Return the prompts of a kind with their indices.

    Greedy passes use half of the prompts with default parameters and half with others; seeded passes the
    other way round. So each prompt has two requests. If there is only one kind, it uses all prompts.
    """
    everything = list(enumerate(plan.prompts))
    first = {GREEDY: 0, GREEDY_PARAMETERS: 1, SEEDED: 1, SEEDED_PARAMETERS: 0}[kind]
    return everything[first::2] if len(plan.limits.kinds) > 1 else everything
