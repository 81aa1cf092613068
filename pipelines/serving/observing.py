"""What tensors say of an answer, for those who judge a candidate by it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError, RequestTimeoutError
from pipelines.routing.arms import Expected
from pipelines.routing.observation import Divergence, Failure, Observation, output_hash
from pipelines.serving.inputs import read_scalar
from pipelines.serving.local_calls import Call, Tensors
from pipelines.speculation.acceptance import count_accepted
from pipelines.text.vocabulary import Vocabulary

_NOT_OF_THE_ANSWER = frozenset({"streaming", "session_id", "num_draft_tokens"})


def prompt_id(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Names what decides an answer: prompt, limits and sampling; the seed only where tokens are drawn."""
    left_out = _NOT_OF_THE_ANSWER
    if read_scalar(tensors, "temperature", float, 0.0) == 0:
        left_out = left_out | {"seed"}
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(tensors) - left_out):
        array = tensors[name]
        values = array.tolist() if array.dtype == np.object_ else array.tobytes()
        digest.update(
            f"{name}{array.shape}".encode() + (repr(values).encode() if isinstance(values, list) else values)
        )
    return digest.hexdigest()


def is_streamed(call: Call) -> bool:
    """Whether the first token comes before the last."""
    return bool(read_scalar(call.tensors, "streaming", bool, False))


def is_comparable(call: Call) -> bool:
    """Whether two pairs of one target must give the same tokens; the ratio rule gives another sample."""
    return not read_scalar(call.tensors, "use_draft_logits", bool, False)


def answer_observed(observation: Observation, outputs: Tensors, output_ids: Sequence[int]) -> Observation:
    """The observation with what an answer says.

    Args:
        observation: So far.
        outputs: Of the last response.
        output_ids: Of the whole answer.
    """
    rounds: dict[str, Any] = {}
    names = "drafted_per_round", "accepted_per_round"
    if set(names) <= set(outputs):  # else the target alone answered
        rounds = {name: tuple(outputs[name].reshape(-1).tolist()) for name in names}
    return replace(
        observation, num_output_tokens=len(output_ids), output_hash=output_hash(output_ids), **rounds
    )


def num_common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both answers begin."""
    return count_accepted(np.array(one, np.int32), np.array(other, np.int32))


def failure_of(error: DraftproofError) -> Failure:
    """How an answer is noted that ended in an error."""
    return "timeout" if isinstance(error, RequestTimeoutError) else "error"


def compared(
    observation: Observation,
    call: Call,
    expected_of: Expected,
    expected_ids: Sequence[int],
    candidate_ids: Sequence[int],
    vocabulary: Vocabulary,
) -> Observation:
    """The observation of a replay with what the comparison says, in readable text where they differ."""
    if list(expected_ids) == list(candidate_ids):
        return replace(observation, tokens="equal")

    def text(ids: Sequence[int]) -> str:
        return vocabulary.join(ids).decode("utf-8", "replace")

    divergence = Divergence(
        text(call.tensors["input_ids"].reshape(-1).tolist()),
        expected_of,
        text(expected_ids),
        text(candidate_ids),
        num_common_tokens(expected_ids, candidate_ids),
    )
    return replace(observation, tokens="diverged", divergence=divergence)
