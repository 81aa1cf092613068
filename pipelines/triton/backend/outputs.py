"""Turns a chunk into the tensors of a response, each with a batch dimension of 1 (``wire/fields.json``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.wire.chunk import Chunk, TopLogProbs

Tensors = dict[str, npt.NDArray[Any]]


def text_tensor(text: bytes | str) -> npt.NDArray[np.object_]:
    """Return a string as BYTES [1, 1]."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return np.array([[data]], dtype=np.object_)


def scalar_tensor(value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a number as [1, 1]."""
    return np.array([[value]], dtype=dtype)


def engine_outputs(chunk: Chunk) -> Tensors:
    """Return the outputs of an engine: all of them in every response, as the steps of an ensemble need."""
    outputs = {
        **_tokens(chunk),
        "text_length": scalar_tensor(chunk.text_length, np.int32),
        **_log_probs(chunk),
        **_at_end(chunk),
        **_drafting(chunk),
    }
    return {**outputs, **_of_prompt(chunk)} if chunk.scores_prompt else outputs


def text_outputs(chunk: Chunk) -> Tensors:
    """Return the outputs of a text model: only what is new, as each tensor costs Triton shared memory."""
    is_last = bool(chunk.finish_reason)
    outputs = {"text_output": text_tensor(chunk.text), **_tokens(chunk)}
    if chunk.log_probs or is_last:
        outputs |= _log_probs(chunk)
    if chunk.prompt_log_probs or (is_last and chunk.scores_prompt):
        outputs |= _of_prompt(chunk)
    outputs |= _drafting(chunk)
    if is_last:
        outputs |= _at_end(chunk)
        outputs["arm"] = text_tensor(chunk.arm)
        outputs["fallback_from"] = text_tensor(",".join(chunk.fallback_from))
    return outputs


def _tokens(chunk: Chunk) -> Tensors:
    return {
        "output_ids": np.array(chunk.output_ids, np.int32).reshape(1, 1, -1),
        "sequence_length": scalar_tensor(chunk.sequence_length, np.int32),
        "finish_reason": text_tensor(chunk.finish_reason),
    }


def _at_end(chunk: Chunk) -> Tensors:
    return {
        "output_seed": scalar_tensor(chunk.seed or 0, np.uint64),
        "cached_prompt_tokens": scalar_tensor(chunk.num_cached, np.int32),
    }


def _log_probs(chunk: Chunk) -> Tensors:
    ids, values = _alternatives(chunk.top_log_probs, len(chunk.log_probs))
    return {
        "output_log_probs": np.array(chunk.log_probs, np.float32).reshape(1, 1, -1),
        "cum_log_probs": scalar_tensor(chunk.cum_log_prob, np.float32),
        "top_log_prob_ids": ids,
        "top_log_probs": values,
    }


def _of_prompt(chunk: Chunk) -> Tensors:
    ids, values = _alternatives(chunk.prompt_top_log_probs, len(chunk.prompt_log_probs))
    return {
        "prompt_log_probs": np.array(chunk.prompt_log_probs, np.float32).reshape(1, 1, -1),
        "prompt_top_log_prob_ids": ids,
        "prompt_top_log_probs": values,
    }


def _alternatives(
    found: TopLogProbs, num_tokens: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return ids and log probabilities [1, tokens, alternatives]."""
    shape = 1, num_tokens, len(found[0]) if found else 0
    ids = np.array([token_id for each in found for token_id, _ in each], np.int32).reshape(shape)
    return ids, np.array([value for each in found for _, value in each], np.float32).reshape(shape)


def _drafting(chunk: Chunk) -> Tensors:
    """Return what only a pair has; nothing from the target alone, or if nothing new was drafted.

    ``acceptance_rate`` is 0 if nothing was drafted (``total_draft_tokens`` is 0 too), since JSON has no NaN.
    """
    counts = chunk.counts
    if counts is None:
        return {}
    rate = counts.total_accepted_draft_tokens / max(1, counts.total_draft_tokens)
    outputs = {
        "accepted_mask": np.array([chunk.accepted_mask], np.bool_),
        "token_sources": np.array([chunk.token_sources], np.int32),
        "num_rounds": scalar_tensor(counts.num_rounds, np.int32),
        "total_draft_tokens": scalar_tensor(counts.total_draft_tokens, np.int32),
        "total_accepted_draft_tokens": scalar_tensor(counts.total_accepted_draft_tokens, np.int32),
        "accepted_prediction_tokens": scalar_tensor(counts.accepted_prediction_tokens, np.int32),
        "rejected_prediction_tokens": scalar_tensor(counts.rejected_prediction_tokens, np.int32),
        "accepted_per_position": np.array([counts.accepted_per_position], np.int32),
        "acceptance_rate": scalar_tensor(rate, np.float32),
    }
    if chunk.draft_length:
        outputs["draft_length"] = text_tensor(chunk.draft_length)
    if chunk.finish_reason:
        outputs["drafted_per_round"] = np.array([chunk.drafted_per_round], np.int32)
        outputs["accepted_per_round"] = np.array([chunk.accepted_per_round], np.int32)
    return outputs
