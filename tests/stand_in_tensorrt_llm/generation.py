"""Generates the tokens of one request in the executor, and its responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.stand_in_tensorrt_llm.network import logits_after
from tests.stand_in_tensorrt_llm.request import ExecutorRequest, Limits, Tensors
from tests.stand_in_tensorrt_llm.sampling import Floats, draw, softmax


@dataclass
class Life:
    """The state of a request."""

    new_ids: list[int] = field(default_factory=list)
    raw_logits: list[npt.NDArray[np.float32]] = field(default_factory=list)


def steps(request: ExecutorRequest, limits: Limits, life: Life, *, is_draft: bool) -> Iterator[None]:
    """Generate; yield after each step of the engine. A request with draft tokens has one step.

    It ends after that step, even if ``request_output_len`` is not reached (updateRequests in
    trtGptModelInflightBatching.cpp: "speculative decoding target model"). The end token ends any request and
    is not counted (forwardAcceptedTokensKernel, samplingTopKKernels.cu).
    """
    drafts = list(request.draft_ids)
    if drafts:
        yield
    while len(life.new_ids) < request.max_new_tokens:
        raw = logits_after(request.input_ids + life.new_ids, is_draft=is_draft)
        law = request.sampling.law(request.sampling.scores(raw, request.input_ids, life.new_ids))
        place = len(life.new_ids)
        draft_id = drafts[place] if place < len(drafts) else None
        token_id = _token(request, law, draft_id, place)
        if token_id == request.sampling.end_id:
            return
        life.new_ids.append(token_id)
        life.raw_logits.append(raw)
        if any(tuple(life.new_ids[-len(word) :]) == word for word in request.stop_words):
            return
        if drafts and token_id != draft_id:
            return
        if not drafts:
            yield


def _token(request: ExecutorRequest, law: Floats, draft_id: int | None, place: int) -> int:
    """Return the verified token: by the ratio rule with draft logits, by equality without them.

    Source: externalDraftTokensKernels.cu.
    """
    if draft_id is None or request.draft_logits is None:
        return draw(law, request.rng)
    q = softmax(request.draft_logits[place].astype(np.float64))  # raw: no temperature
    if law[draft_id] / max(q[draft_id], 1e-300) >= request.rng.random():
        return draft_id
    return draw(np.maximum(law - q, 0.0), request.rng)


def outputs(request: ExecutorRequest, limits: Limits, life: Life, num_sent: int) -> Tensors:
    """Return one response: all tokens, or in a stream those since the last one, without the input."""
    if request.streaming:
        token_ids = life.new_ids[num_sent:]
    else:
        token_ids = life.new_ids if request.excludes_input else request.input_ids + life.new_ids
    tensors: Tensors = {
        "output_ids": np.array(token_ids, np.int32).reshape(1, 1, -1),
        "sequence_length": np.array([[len(token_ids)]], np.int32),
    }
    if request.return_generation_logits:
        # As many rows as were asked for, however early the text ended (llmRequest.h,
        # allocGenerationLogitsHost and allocTargetModelAcceptedTokenLogitsHost).
        num_rows = len(request.draft_ids) + 1 if request.draft_ids else request.max_new_tokens
        rows = np.full((num_rows, limits.padded_vocab_size), np.nan, np.float32)
        rows[: len(life.raw_logits), : limits.vocab_size] = life.raw_logits
        rows[: len(life.raw_logits), limits.vocab_size :] = 0
        tensors["generation_logits"] = rows[np.newaxis, np.newaxis]
    return tensors
