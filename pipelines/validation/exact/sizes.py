"""Sizes of the proof: a full one for releases and a short one of the same design."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.command_line.prompts import Prompt
from pipelines.errors import VerificationError
from pipelines.validation.exact.plan import LOADS, DraftLength, Goal, Plan
from pipelines.validation.exact.sampling_kinds import GREEDY, KINDS


@dataclass(frozen=True)
class Size:
    """Size of a proof.

    Attributes:
        num_prompts: Number of different prompts, if there are as many.
        max_tokens: Most output tokens per answer.
        num_cold: As in ``Plan``.
        num_alone: As in ``Plan``.
        num_for_acceptance: Number of prompts for comparing coupled and uncoupled sampling.
        num_for_distribution: Number of prompts with many unseeded answers each; 0 skips that part, because
            fewer answers would show nothing.
        goal: As in ``Plan``.
    """

    num_prompts: int
    max_tokens: int
    num_cold: int
    num_alone: int
    num_for_acceptance: int
    num_for_distribution: int
    goal: Goal


RELEASE = Size(320, 128, 8, 40, 64, 8, Goal(max_rate=0.01, num_tokens=200_000))
QUICK = Size(24, 16, 2, 4, 8, 0, Goal(max_rate=0.125, num_tokens=0))

LEAST_PROMPTS = 2
"""Half of the prompts are asked with default parameters, and half with others."""

_MEAN_GAP_S = 0.1


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_draft_len: Most draft tokens per round.
        max_requests: Most requests that run and wait.
        default_draft_length: Default draft length, as its answers report it.
        kinds: Kinds of sampling for which it drafts. TensorRT-LLM's engines draft for greedy requests only:
            other requests are answered by the target alone or have no equal there.
    """

    max_draft_len: int
    max_requests: int
    default_draft_length: str
    kinds: tuple[str, ...] = KINDS


def read_limits(parameters: Mapping[str, str], default_draft_length: str) -> Limits:
    """Read the parameters of the model ``speculative``.

    Args:
        parameters: Parameters of the loaded model.
        default_draft_length: As in ``Limits``; no parameter, because it can change while the server runs.

    Raises:
        VerificationError: A parameter is missing or invalid.
    """
    try:
        return Limits(
            int(parameters["max_draft_len"]),
            int(parameters["max_batch_size"]) + int(parameters["max_queue_size"]),
            default_draft_length,
            (GREEDY,) if parameters.get("engine_access") == "tensorrt_llm" else KINDS,
        )
    except (KeyError, ValueError) as error:
        raise VerificationError(
            "the limits of the server cannot be read",
            values=f"{error!r} in the parameters of the model speculative",
            limit="whole numbers for max_draft_len, max_batch_size and max_queue_size",
            remedy="render the model repository again with 'make repository'",
        ) from error


def plan_of(size: Size, prompts: tuple[Prompt, ...], limits: Limits) -> Plan:
    """Build the plan of a size for a server, without loads that it would refuse."""
    # Corpora alternate in file order; shuffling puts all of them into each half of the prompts.
    shuffled = random.Random(0).sample(prompts, len(prompts))
    return Plan(
        prompts=tuple(shuffled),
        max_tokens=size.max_tokens,
        draft_lengths=(
            *(DraftLength(number, str(number)) for number in range(limits.max_draft_len + 1)),
            DraftLength(None, limits.default_draft_length),
        ),
        loads=tuple(load for load in LOADS if load < limits.max_requests),  # leaves room for cancellations
        num_cold=size.num_cold,
        num_alone=size.num_alone,
        mean_gap_s=_MEAN_GAP_S,
        goal=size.goal,
        kinds=limits.kinds,
    )
