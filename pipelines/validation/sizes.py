"""How large a proof is: the one that a release is judged by, and a short one of the same design."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.errors import VerificationError
from pipelines.prompts import Prompt
from pipelines.validation.plan import LOADS, DraftLength, Goal, Plan
from pipelines.validation.sampling_kinds import GREEDY, KINDS


@dataclass(frozen=True)
class Size:
    """Counts that a plan is made with.

    Attributes:
        num_prompts: Different prompts.
        max_tokens: Output tokens per answer at most.
        num_cold: As in ``Plan``.
        num_alone: As in ``Plan``.
        num_for_acceptance: Prompts that coupled and uncoupled sampling are compared with.
        num_for_law: Prompts that are answered hundreds of times without a seed; 0 leaves that out, for
            fewer answers would show nothing.
        goal: As in ``Plan``.
    """

    num_prompts: int
    max_tokens: int
    num_cold: int
    num_alone: int
    num_for_acceptance: int
    num_for_law: int
    goal: Goal


RELEASE = Size(320, 128, 8, 40, 64, 8, Goal(max_rate=0.01, num_tokens=200_000))
QUICK = Size(24, 16, 2, 4, 8, 0, Goal(max_rate=0.125, num_tokens=0))

_MEAN_GAP_S = 0.1


@dataclass(frozen=True)
class Limits:
    """What the server says it can do.

    Attributes:
        max_draft_len: Most draft tokens per round.
        max_requests: Running and waiting together, at most.
        default_draft_length: Of requests that do not say, in the words of its answers.
        kinds: Ways to choose tokens in which it drafts. On TensorRT-LLM's engines that is the greedy one:
            the target alone answers the others, or they have no equal there.
    """

    max_draft_len: int
    max_requests: int
    default_draft_length: str
    kinds: tuple[str, ...] = KINDS


def read_limits(parameters: Mapping[str, str], default_draft_length: str) -> Limits:
    """Read the parameters of the model ``speculative``.

    Args:
        parameters: As the server loaded them.
        default_draft_length: As in ``Limits``; not a parameter, for it can be set while the server runs.

    Raises:
        VerificationError: They do not say.
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
            "the server does not say its limits",
            values=f"{error!r} in the parameters of the model speculative",
            limit="max_draft_len, max_batch_size and max_queue_size are whole numbers",
            remedy="render the model repository anew with 'make repository'",
        ) from error


def plan_of(size: Size, prompts: tuple[Prompt, ...], limits: Limits) -> Plan:
    """The plan of a size for a server; loads that it would refuse are left out."""
    # Corpora take turns in the file order; each half of the prompts is to hold all of them.
    shuffled = random.Random(0).sample(prompts, len(prompts))
    return Plan(
        prompts=tuple(shuffled),
        max_tokens=size.max_tokens,
        draft_lengths=(
            *(DraftLength(number, str(number)) for number in range(limits.max_draft_len + 1)),
            DraftLength(None, limits.default_draft_length),
        ),
        loads=tuple(load for load in LOADS if load < limits.max_requests),  # one place for cancellations
        num_cold=size.num_cold,
        num_alone=size.num_alone,
        mean_gap_s=_MEAN_GAP_S,
        goal=size.goal,
        kinds=limits.kinds,
    )
