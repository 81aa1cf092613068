"""Parses tensors into a request of the executor, with the refusals of utils.cc and executor::Request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.stand_in_tensorrt_llm.sampling import Sampling

Tensors = dict[str, npt.NDArray[Any]]


class Refused(Exception):
    """Raised with the text of the error response, as TLLM_THROW and TLLM_CHECK write it."""


def refused_by_executor(what: str) -> Refused:
    """The error of a request that the executor takes from its queue and cannot run.

    ``fetchNewRequests`` of cpp/tensorrt_llm/executor/executorImpl.cpp @b35ac1b6, then ``fillTritonResponse``
    of triton_backend/inflight_batcher_llm/src/model_instance_state.cc @0c8de69a.
    """
    return Refused(
        "Executor failed process requestId 7 due to the following error: "
        f"Encountered an error when fetching new request: {what}"
    )


def assertion(condition: str, source: str) -> Refused:
    """Return the text that TLLM_CHECK throws: the condition, the place, a stack trace."""
    return Refused(
        f"[TensorRT-LLM][ERROR] Assertion failed: {condition} (/src/tensorrt_llm/cpp/tensorrt_llm/{source})\n"
        "1       0x7f0000000000 tensorrt_llm::common::throwRuntimeError(char const*, int, char const*) + 95"
    )


@dataclass(frozen=True)
class Limits:
    """The limits of the engine, from its config.json, and of the model's parameters."""

    vocab_size: int
    padded_vocab_size: int
    max_seq_len: int
    max_input_len: int
    max_draft_len: int
    excludes_input: bool
    gathers_generation_logits: bool


@dataclass
class ExecutorRequest:
    input_ids: list[int]
    max_new_tokens: int
    streaming: bool
    excludes_input: bool
    sampling: Sampling
    rng: np.random.Generator
    draft_ids: list[int] = field(default_factory=list)
    draft_logits: npt.NDArray[Any] | None = None
    stop_words: tuple[tuple[int, ...], ...] = ()
    return_generation_logits: bool = False


def parse(tensors: Tensors, limits: Limits) -> ExecutorRequest:
    """Parse the tensors of one request."""

    def scalar(name: str, default: Any) -> Any:
        return tensors[name].ravel()[0] if name in tensors else default

    input_ids = tensors["input_ids"].ravel().tolist() if "input_ids" in tensors else []
    if int(scalar("input_lengths", -1)) != len(
        input_ids
    ):  # stricter: the original ignores it in a batch of 1
        raise Refused("input_lengths does not match input_ids")
    if not input_ids:
        raise assertion("!mInputTokenIds.empty()", "executor/requestImpl.h:412")
    max_new_tokens = int(scalar("request_output_len", 0))
    if max_new_tokens < 1:
        raise assertion("mMaxNewTokens > 0", "executor/requestImpl.h:413")
    draft_ids = tensors["draft_input_ids"].ravel().tolist() if "draft_input_ids" in tensors else []
    if "draft_input_ids" in tensors and not draft_ids:  # TensorRT-LLM issue 2684
        raise assertion("!mTokens.empty()", "executor/speculativeDecodingConfig.cpp:47")
    request = ExecutorRequest(
        input_ids=input_ids,
        max_new_tokens=max_new_tokens,
        streaming=bool(scalar("streaming", False)),
        excludes_input=bool(scalar("exclude_input_in_output", limits.excludes_input)),
        sampling=_sampling(tensors, limits, scalar),
        rng=np.random.default_rng(int(scalar("seed", 0))),
        draft_ids=draft_ids,
        draft_logits=_draft_logits(tensors, len(draft_ids), limits),
        stop_words=_words(tensors, "stop_words_list"),
        return_generation_logits=bool(scalar("return_generation_logits", False)),
    )
    _validate(request, limits)
    return request


def _sampling(tensors: Tensors, limits: Limits, scalar: Any) -> Sampling:
    temperature, top_p = float(scalar("temperature", 1.0)), float(scalar("runtime_top_p", 0.0))
    for holds, words in (
        (temperature >= 0, "temperature.value() >= 0.f"),
        (top_p <= 1, "topP.value() <= 1.f"),
        (float(scalar("repetition_penalty", 1.0)) > 0, "repetitionpenalty.value() > 0.f"),
    ):
        if not holds:
            raise assertion(words, "executor/samplingConfig.cpp:300")
    bias = tensors["embedding_bias"].ravel() if "embedding_bias" in tensors else None
    if bias is not None and len(bias) != limits.padded_vocab_size:  # tensorrtllm_backend issue 720
        raise Refused(f"embedding bias has {len(bias)} entries, expected {limits.padded_vocab_size}")
    return Sampling(
        temperature=temperature,
        top_k=int(scalar("runtime_top_k", 0)),
        top_p=top_p,
        repetition_penalty=float(scalar("repetition_penalty", 1.0)),
        presence_penalty=float(scalar("presence_penalty", 0.0)),
        frequency_penalty=float(scalar("frequency_penalty", 0.0)),
        min_tokens=int(scalar("min_tokens", 0)),
        end_id=int(scalar("end_id", -1)),
        bias=None if bias is None else bias[: limits.vocab_size],
        bad_words=_words(tensors, "bad_words_list"),
    )


def _draft_logits(tensors: Tensors, num_draft: int, limits: Limits) -> npt.NDArray[Any] | None:
    if "draft_logits" not in tensors:
        return None
    logits = tensors["draft_logits"][0]
    if logits.shape != (num_draft, limits.padded_vocab_size):  # TensorRT-LLM issue 2789
        raise assertion("Incompatible buffer sizes", "runtime/gptDecoderBatched.cpp:350")
    return logits[:, : limits.vocab_size]


def _words(tensors: Tensors, name: str) -> tuple[tuple[int, ...], ...]:
    """Parse ``convertWordList``'s format: ids, then the offsets at which words end, padded with -1."""
    if name not in tensors:
        return ()
    ids, offsets = tensors[name][0].tolist()
    words, start = [], 0
    for index, end in enumerate(offsets):
        if end == -1:
            if any(later != -1 for later in offsets[index:]):
                raise Refused("Sparse list must not have additional -1s")
            break
        if end > len(ids) or end <= start:
            raise Refused("Sparse list must not have out-of-bound or non-increasing offsets")
        words.append(tuple(ids[start:end]))
        start = end
    return tuple(words)


def _validate(request: ExecutorRequest, limits: Limits) -> None:
    """Apply ``GenericLlmRequest::validate``: refuse what is too long, or cut it with a warning in the log."""
    num_input, num_draft = len(request.input_ids), len(request.draft_ids)
    if num_input > limits.max_input_len:
        raise refused_by_executor(
            f"Prompt length ({num_input}) exceeds maximum input length ({limits.max_input_len}). "
            "Set log level to info and check TRTGptModel logs for how maximum input length is set"
        )
    if num_draft > limits.max_draft_len:
        raise refused_by_executor(
            f"Draft tokens length ({num_draft}) exceeds maximum draft tokens length ({limits.max_draft_len})."
        )
    # executorImpl.cpp @b35ac1b6. getGatherGenerationLogits (trtGptModelInflightBatching.h) is true by the
    # engine's own config.json or by ExecutorConfig, and Triton's backend (model_instance_state.cc @0c8de69a)
    # has no parameter for the latter.
    if request.return_generation_logits and not limits.gathers_generation_logits:
        raise refused_by_executor(
            "[TensorRT-LLM][ERROR] Assertion failed: To return generation logits, "
            "gather_generation_logits must be enabled in ExecutorConfig "
            "(/src/tensorrt_llm/cpp/tensorrt_llm/executor/executorImpl.cpp:1482)"
        )
    if request.return_generation_logits and request.streaming:
        raise Refused("streamed logits")  # stricter: the original sends one row with each token
    del request.draft_ids[max(0, limits.max_input_len - num_input) :]
    room = limits.max_seq_len - num_input - len(request.draft_ids)
    request.max_new_tokens = min(request.max_new_tokens, room)
