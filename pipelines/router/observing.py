"""Extracts from tensors what an observation records about an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.router.breaker import FAILURES, outcome_of
from pipelines.router.observation import (
    Difference,
    Divergence,
    Failure,
    Observation,
    Rightness,
    output_hash,
)
from pipelines.router.received_answer import ReceivedAnswer, first_difference, shown_value
from pipelines.speculation.token_ids import count_accepted
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import Call
from pipelines.wire.tensors import read_scalar

_NOT_OF_THE_ANSWER = frozenset({"streaming", "session_id", "num_draft_tokens"})


def prompt_id(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Hash everything that determines an answer: prompt, limits, sampling, and the seed unless greedy."""
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
    """Whether the client asked for a streamed answer."""
    return bool(read_scalar(call.tensors, "streaming", bool, False))


def is_comparable(call: Call) -> bool:
    """Whether pairs with the same target must answer alike; with the ratio rule, samples differ."""
    return not read_scalar(call.tensors, "use_draft_logits", bool, False)


def with_answer(observation: Observation, received: ReceivedAnswer) -> Observation:
    """Return the observation with the counts of a complete answer."""
    rounds: dict[str, Any] = {}
    names = "drafted_per_round", "accepted_per_round"
    if set(names) <= set(received.last):  # absent if the target answered alone
        rounds = {name: tuple(received.last[name].reshape(-1).tolist()) for name in names}
    ids = received.output_ids
    return replace(observation, num_output_tokens=len(ids), output_hash=output_hash(ids), **rounds)


def num_common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens that both answers have in common at the start."""
    return count_accepted(np.array(one, np.int32), np.array(other, np.int32))


def failure_of(error: DraftproofError) -> Failure:
    """Return the failure to record for an error; "" if the arm did not cause it."""
    return "error" if outcome_of(error) in FAILURES else ""


def with_comparison(
    observation: Observation,
    call: Call,
    expected_of: Rightness,
    expected: ReceivedAnswer,
    candidate: ReceivedAnswer,
    vocabulary: Vocabulary,
) -> Observation:
    """Return the observation of a replay with the first difference from the expected answer."""
    differs_in = first_difference(expected, candidate)
    if not differs_in:
        return replace(observation, answer="equal")
    said = shown_value(differs_in, expected), shown_value(differs_in, candidate)
    divergence = Divergence(
        _prompt(call, vocabulary),
        expected_of,
        differs_in,
        expected.text,
        candidate.text,
        num_common_tokens(expected.output_ids, candidate.output_ids),
        *said,
    )
    return _diverged(observation, differs_in, divergence)


def with_chunk_check(
    observation: Observation, call: Call, received: ReceivedAnswer, vocabulary: Vocabulary
) -> Observation:
    """Return the observation with a check that the chunks of the answer do not contradict each other."""
    if not received.fault:
        return observation
    num_tokens = len(received.output_ids)
    divergence = Divergence(
        _prompt(call, vocabulary),
        "itself",
        "chunks",
        received.text,
        received.text,
        num_tokens,
        "",
        received.fault,
    )
    return _diverged(observation, "chunks", divergence)


def _diverged(observation: Observation, differs_in: Difference, divergence: Divergence) -> Observation:
    return replace(observation, answer="diverged", differs_in=differs_in, divergence=divergence)


def _prompt(call: Call, vocabulary: Vocabulary) -> str:
    return vocabulary.join(call.tensors["input_ids"].reshape(-1).tolist()).decode("utf-8", "replace")
