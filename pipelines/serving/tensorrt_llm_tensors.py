"""Requests as the tensors of NVIDIA's ``tensorrt_llm`` model, and its answers as tokens.

Names, types and shapes: triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt and
inflight_batcher_llm/src/utils.cc of TensorRT-LLM 1.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineFailedError
from pipelines.serving.triton_wire import scalar_tensor
from pipelines.serving.word_list import pack_words
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling_params import SamplingParams
from pipelines.speculation.token_ids import Logits, TokenIds

Outputs = dict[str, npt.NDArray[Any]]

TOKENS = ("output_ids", "sequence_length")
"""Outputs that the C++ backend must be asked for: it throws if either is not wanted."""

LOG_PROBS = "output_log_probs"
LOGITS = "generation_logits"

_TEMPERATURE_OFFSET = 1e-6  # the engine divides by temperature + this (penaltyKernels.cu)


def plain_tensors(
    request: GenerationRequest, padded_vocab_size: int, bad_words: Sequence[Sequence[int]], *, streaming: bool
) -> Outputs:
    """A request that the target answers alone, with everything that its one life can hold.

    Args:
        request: Without draft tokens.
        padded_vocab_size: Columns of the engine's logits.
        bad_words: Token ids of each of the request's bad words.
        streaming: Whether tokens are wanted as they come.
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
    if request.num_log_probs is not None:
        tensors["return_log_probs"] = scalar_tensor(True, np.bool_)
    return {**tensors, **_bias(sampling, padded_vocab_size)}


def verification_tensors(request: GenerationRequest, padded_vocab_size: int, seed: int) -> Outputs:
    """One round of the target.

    Without draft tokens there is no ``draft_input_ids``: the presence of the tensor alone selects the path
    of external drafts, which asserts that it is not empty (TensorRT-LLM issue 2684).

    Args:
        request: ``max_tokens`` is the number of draft tokens and one more.
        padded_vocab_size: Columns of the engine's logits.
        seed: Of this round.
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


def draft_tensors(request: GenerationRequest, padded_vocab_size: int, seed: int, *, scaled: bool) -> Outputs:
    """One proposal of the draft.

    It has no ``end_id``: an end token is proposed like any other and the text ends there if the target
    accepts it. So a proposal is never empty, and what it was drawn from is a plain softmax. That is of
    the whole vocabulary: cut to top_k or top_p it would have borders that this side cannot know exactly.

    Args:
        request: ``max_tokens`` tokens are wanted.
        padded_vocab_size: Columns of the engine's logits.
        seed: Of this round.
        scaled: Whether to draw at the request's temperature; else at 1.
    """
    sampling = request.sampling
    tensors = _input(request, streaming=False)
    if sampling.is_greedy:
        return {**tensors, **_choice(sampling, seed), **_bias(sampling, padded_vocab_size)}
    whole = SamplingParams(temperature=sampling.temperature if scaled else 1.0)
    return {
        **tensors,
        **_choice(whole, seed),
        "return_generation_logits": scalar_tensor(True, np.bool_),
    }


def proposal_logits(
    logits: npt.NDArray[Any], num_tokens: int, temperature: float, draft_vocab: int, target_columns: int
) -> Logits:
    """What the target is handed as ``draft_logits``: their softmax is what the draft drew from.

    The target takes the softmax of them as they come, without the temperature (externalDraftTokensLayer.cpp,
    acceptDraftTokens), so they are divided by it here; left out, the accepted tokens would follow no law.
    Columns are those of the target: engines pad their vocabularies differently, and the target takes no
    other width (TensorRT-LLM issue 2789).

    Args:
        logits: [1, 1, n, columns of the draft], raw.
        num_tokens: Proposed tokens, at most n.
        temperature: That the draft drew at.
        draft_vocab: Columns of the draft that stand for tokens.
        target_columns: Columns of the target's logits.
    """
    rows = logits.reshape(-1, logits.shape[-1])[:num_tokens, :draft_vocab]
    fitted = np.full((num_tokens, target_columns), np.finfo(logits.dtype).min, logits.dtype)
    fitted[:, : rows.shape[1]] = rows / np.float32(temperature + _TEMPERATURE_OFFSET)
    return fitted


def new_tokens(outputs: Mapping[str, npt.NDArray[Any]], request: GenerationRequest) -> TokenIds:
    """What a whole answer adds to the request's input.

    Raises:
        EngineFailedError: The answer does not begin with the input.
    """
    length = int(outputs["sequence_length"].reshape(-1)[0])
    token_ids = outputs["output_ids"].reshape(-1)[:length]
    num_input = len(request.input_ids)
    if not np.array_equal(token_ids[:num_input], request.input_ids):
        raise EngineFailedError(
            "the engine's answer does not begin with its input",
            values=f"{length} tokens for {num_input} of input, request {request.request_id}",
            limit="exclude_input_in_output must be false in the model's config.pbtxt",
            remedy="render the model repository again with 'make repository'",
        )
    return np.ascontiguousarray(token_ids[num_input:], dtype=np.int32)


def streamed_tokens(outputs: Mapping[str, npt.NDArray[Any]]) -> TokenIds:
    """What one response of a streamed answer adds: it never repeats the input, nor what was sent before."""
    length = int(outputs["sequence_length"].reshape(-1)[0])
    return np.ascontiguousarray(outputs["output_ids"].reshape(-1)[:length], dtype=np.int32)


def _input(request: GenerationRequest, *, streaming: bool) -> Outputs:
    return {
        "input_ids": request.input_ids.reshape(1, -1),
        "input_lengths": scalar_tensor(len(request.input_ids), np.int32),
        "request_output_len": scalar_tensor(request.max_tokens, np.int32),
        # Said each time: the model's parameter may be anything.
        "exclude_input_in_output": scalar_tensor(False, np.bool_),
        "streaming": scalar_tensor(streaming, np.bool_),
    }


def _end(request: GenerationRequest) -> Outputs:
    """The one end token that a request can have; what others end is cut by ``OutputEnd``."""
    return {"end_id": scalar_tensor(request.end_ids[0], np.int32)} if request.end_ids else {}


def _choice(sampling: SamplingParams, seed: int) -> Outputs:
    """How a token is chosen. Nothing said would be greedy, so each of the three is said."""
    if sampling.is_greedy:
        return {"runtime_top_k": scalar_tensor(1, np.int32)}
    return {
        "temperature": scalar_tensor(sampling.temperature, np.float32),
        "runtime_top_k": scalar_tensor(sampling.top_k, np.int32),
        "runtime_top_p": scalar_tensor(sampling.top_p, np.float32),
        "seed": scalar_tensor(seed, np.uint64),
    }


def _bias(sampling: SamplingParams, padded_vocab_size: int) -> Outputs:
    """Bias of every column; an engine refuses any other size (tensorrtllm_backend issue 720)."""
    if not sampling.logit_bias:
        return {}
    dense = np.zeros((1, padded_vocab_size), np.float32)
    for token_id, bias in sampling.logit_bias:
        dense[0, token_id] = bias
    return {"embedding_bias": dense}
