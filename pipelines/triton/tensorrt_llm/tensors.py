"""Converts requests to tensors of NVIDIA's ``tensorrt_llm`` model, and its answers to tokens.

Names, types and shapes: triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt and
inflight_batcher_llm/src/utils.cc of TensorRT-LLM 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineFailedError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.token_ids import Logits, TokenIds
from pipelines.triton.backend.outputs import scalar_tensor
from pipelines.triton.backend.word_list import pack_words

Outputs = dict[str, npt.NDArray[Any]]

TOKENS = ("output_ids", "sequence_length")
"""Outputs that must always be requested: otherwise the C++ backend throws an exception."""

LOGITS = "generation_logits"

_TEMPERATURE_OFFSET = 1e-6  # the engine divides by temperature + this (penaltyKernels.cu)


def plain_tensors(
    request: GenerationRequest, padded_vocab_size: int, bad_words: Sequence[Sequence[int]], *, streaming: bool
) -> Outputs:
    """Return the tensors of a request that the target answers alone.

    Args:
        request: A request without draft tokens.
        padded_vocab_size: Columns of the engine's logits.
        bad_words: Token ids of each bad word.
        streaming: Whether to stream the answer.
    """
    sampling = request.sampling
    tensors = {**_input(request, streaming=streaming), **_end(request), **_choice(sampling, sampling.seed)}
    if further := request.end_ids[1:]:
        tensors["stop_words_list"] = pack_words([[end_id] for end_id in further])[np.newaxis]
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        if getattr(sampling, name) != getattr(SamplingParams, name):
            tensors[name] = scalar_tensor(getattr(sampling, name), np.float32)
    num_known = len(request.input_ids) - request.num_prompt_tokens
    if sampling.min_tokens > num_known:
        tensors["min_tokens"] = scalar_tensor(sampling.min_tokens - num_known, np.int32)
    if bad_words:
        tensors["bad_words_list"] = pack_words(bad_words)[np.newaxis]
    return {**tensors, **_bias(sampling, padded_vocab_size)}


def verification_tensors(request: GenerationRequest, padded_vocab_size: int, seed: int) -> Outputs:
    """Return the tensors for one round of the target.

    Without draft tokens ``draft_input_ids`` is left out: its mere presence selects the code for external
    drafts, which asserts that it is not empty (TensorRT-LLM issue 2684).

    Args:
        request: The request; ``max_tokens`` is the number of draft tokens plus one.
        padded_vocab_size: Columns of the engine's logits.
        seed: Seed of this round.
    """
    tensors = {
        **_input(request, streaming=False),
        **_end(request),
        **_choice(request.sampling, seed),
        **_bias(request.sampling, padded_vocab_size),
    }
    if len(request.draft_input_ids):
        tensors["draft_input_ids"] = request.draft_input_ids.reshape(1, -1)
        if request.draft_logits is not None:
            tensors["draft_logits"] = request.draft_logits[np.newaxis]
    return tensors


def draft_tensors(request: GenerationRequest, padded_vocab_size: int, seed: int) -> Outputs:
    """Return the tensors for one proposal of the draft.

    There is no ``end_id``: an end token is proposed like any other, and the text ends if the target accepts
    it. So a proposal is never empty, and its distribution is a plain softmax over the whole vocabulary. With
    top_k or top_p its cut-off could not be reproduced exactly on this side.

    Args:
        request: The request; asks for ``max_tokens`` tokens.
        padded_vocab_size: Columns of the engine's logits.
        seed: Seed of this round.
    """
    sampling = request.sampling
    tensors = _input(request, streaming=False)
    if sampling.is_greedy:
        return {**tensors, **_choice(sampling, seed), **_bias(sampling, padded_vocab_size)}
    whole = SamplingParams(temperature=sampling.temperature)
    return {
        **tensors,
        **_choice(whole, seed),
        "return_generation_logits": scalar_tensor(True, np.bool_),
    }


def proposal_logits(
    logits: npt.NDArray[Any], num_tokens: int, temperature: float, draft_vocab: int, target_columns: int
) -> Logits:
    """Return the ``draft_logits`` for the target, whose softmax is the distribution the draft drew from.

    The target does not apply the temperature to them (externalDraftTokensLayer.cpp, acceptDraftTokens), so
    they are divided by it here; otherwise accepted tokens would follow the wrong distribution. The columns
    are those of the target: engines pad their vocabularies differently, and the target accepts no other width
    (TensorRT-LLM issue 2789).

    Args:
        logits: [1, 1, n, columns of the draft], raw.
        num_tokens: Number of proposed tokens, at most n.
        temperature: Temperature at which the draft drew.
        draft_vocab: Columns of the draft that represent tokens.
        target_columns: Columns of the target's logits.
    """
    rows = logits.reshape(-1, logits.shape[-1])[:num_tokens, :draft_vocab]
    fitted = np.full((num_tokens, target_columns), np.finfo(logits.dtype).min, logits.dtype)
    fitted[:, : rows.shape[1]] = rows / np.float32(temperature + _TEMPERATURE_OFFSET)
    return fitted


def new_tokens(outputs: Mapping[str, npt.NDArray[Any]], request: GenerationRequest) -> TokenIds:
    """Return the tokens that an answer adds to the request's input.

    Raises:
        EngineFailedError: The answer does not begin with the input.
    """
    length = int(outputs["sequence_length"].reshape(-1)[0])
    token_ids = outputs["output_ids"].reshape(-1)[:length]
    num_input = len(request.input_ids)
    if not np.array_equal(token_ids[:num_input], request.input_ids):
        raise EngineFailedError(
            f"the engine's answer does not begin with its input: {length} tokens for {request.request_id}",
            "render the repository again with 'draftproof repository', with exclude_input_in_output false",
        )
    return np.ascontiguousarray(token_ids[num_input:], dtype=np.int32)


def streamed_tokens(outputs: Mapping[str, npt.NDArray[Any]]) -> TokenIds:
    """Return the new tokens of a streamed response, which repeats neither input nor earlier tokens."""
    length = int(outputs["sequence_length"].reshape(-1)[0])
    return np.ascontiguousarray(outputs["output_ids"].reshape(-1)[:length], dtype=np.int32)


def _input(request: GenerationRequest, *, streaming: bool) -> Outputs:
    return {
        "input_ids": request.input_ids.reshape(1, -1),
        "input_lengths": scalar_tensor(len(request.input_ids), np.int32),
        "request_output_len": scalar_tensor(request.max_tokens, np.int32),
        # Always sent, because the model's own setting may differ.
        "exclude_input_in_output": scalar_tensor(False, np.bool_),
        "streaming": scalar_tensor(streaming, np.bool_),
    }


def _end(request: GenerationRequest) -> Outputs:
    """Return the only end token that a request can have; ``OutputEnd`` handles further ones."""
    return {"end_id": scalar_tensor(request.end_ids[0], np.int32)} if request.end_ids else {}


def _choice(sampling: SamplingParams, seed: int) -> Outputs:
    """Return the sampling tensors; all are sent, because the default is greedy."""
    if sampling.is_greedy:
        return {"runtime_top_k": scalar_tensor(1, np.int32)}
    return {
        "temperature": scalar_tensor(sampling.temperature, np.float32),
        "runtime_top_k": scalar_tensor(sampling.top_k, np.int32),
        "runtime_top_p": scalar_tensor(sampling.top_p, np.float32),
        "seed": scalar_tensor(seed, np.uint64),
    }


def _bias(sampling: SamplingParams, padded_vocab_size: int) -> Outputs:
    """Return a dense bias of all columns; engines refuse other sizes (tensorrtllm_backend issue 720)."""
    if not sampling.logit_bias:
        return {}
    dense = np.zeros((1, padded_vocab_size), np.float32)
    ids, values = sampling.bias
    dense[0, ids] = values
    return {"embedding_bias": dense}
