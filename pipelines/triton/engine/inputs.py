"""Reads the tensors of a request to an engine, whose names and shapes are those of TensorRT-LLM's model.

Ranges are checked later, where the limits are known.
"""

from __future__ import annotations

from pipelines.errors import InvalidRequestError
from pipelines.speculation.sampling.params import SamplingParams, draw_seed
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind
from pipelines.triton.backend.tensors import (
    Inputs,
    read_guide,
    read_id,
    read_logit_bias,
    read_num_log_probs,
    read_scalar,
    read_token_ids,
    without_batch,
)
from pipelines.triton.backend.word_list import unpack_words
from pipelines.wire.messages import EngineRequest


def engine_request(
    inputs: Inputs, vocabulary: Vocabulary, request_id: str = "", timeout_us: int = 0
) -> EngineRequest:
    """Build the request that the tensors describe; without ``seed`` one is drawn.

    Args:
        inputs: Tensors by name; optional ones may be absent.
        vocabulary: Bytes of the tokens, for stop words and bad words.
        request_id: The client's id; need not be unique.
        timeout_us: The client's time limit in microseconds; 0 for none.

    Raises:
        InvalidRequestError: A tensor has an invalid shape or value.
    """
    input_ids = read_token_ids(inputs, "input_ids")
    num_input = read_scalar(inputs, "input_lengths", len(input_ids))
    if num_input != len(input_ids):
        raise InvalidRequestError(
            f"input_lengths={num_input}, but input_ids has {len(input_ids)} tokens",
            "send one request per call, without padding",
        )
    return EngineRequest(
        input_ids=input_ids,
        max_tokens=read_scalar(inputs, "request_output_len", 0),
        request_id=request_id,
        timeout_us=timeout_us,
        streaming=read_scalar(inputs, "streaming", False),
        prompt_length=read_scalar(inputs, "prompt_length", None),
        sampling=SamplingParams(
            temperature=read_scalar(inputs, "temperature", 0.0),
            top_k=read_scalar(inputs, "runtime_top_k", 0),
            top_p=read_scalar(inputs, "runtime_top_p", 1.0),
            min_p=read_scalar(inputs, "min_p", 0.0),
            repetition_penalty=read_scalar(inputs, "repetition_penalty", 1.0),
            presence_penalty=read_scalar(inputs, "presence_penalty", 0.0),
            frequency_penalty=read_scalar(inputs, "frequency_penalty", 0.0),
            min_tokens=read_scalar(inputs, "min_tokens", 0),
            logit_bias=read_logit_bias(inputs),
            seed=read_scalar(inputs, "seed", None) if "seed" in inputs else draw_seed(),
        ),
        end_id=read_scalar(inputs, "end_id", None),
        stop_token_ids=read_token_ids(inputs, "stop_token_ids"),
        stop=_read_words(inputs, vocabulary, WordKind.STOP),
        bad_words=_read_words(inputs, vocabulary, WordKind.BAD),
        num_log_probs=read_num_log_probs(inputs),
        return_prompt_log_probs=read_scalar(inputs, "return_prompt_log_probs", False),
        guide=read_guide(inputs),
        num_draft_tokens=read_scalar(inputs, "num_draft_tokens", None),
        use_draft_logits=read_scalar(inputs, "use_draft_logits", False),
        prediction_ids=read_token_ids(inputs, "prediction_ids"),
        session_id=read_id(inputs, "session_id"),
        cache_salt=read_id(inputs, "cache_salt"),
    )


def _read_words(inputs: Inputs, vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    matrix = without_batch(inputs, f"{kind.value}_list")
    return () if matrix is None else unpack_words(matrix, vocabulary, kind)
