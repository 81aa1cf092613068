"""Parses the tensors of a request to ``target`` or ``speculative``.

Names, types and shapes are those of TensorRT-LLM's model ``tensorrt_llm``, plus ``prompt_length``,
``independent_noise``, ``num_draft_tokens`` and ``use_draft_logits``. Ranges are checked later, where the
limits are known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_ids import Logits
from pipelines.text.guides import GUIDE_TYPES, Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.sampling_tensors import GUIDE_TENSORS, read_sampling
from pipelines.wire.tensors import Inputs, decode_utf8, read_id, read_scalar, read_token_ids, without_batch
from pipelines.wire.word_list import WordKind, unpack_words


@dataclass(frozen=True)
class GenerationCall:
    """A request as it was received.

    Attributes:
        request: The request to the engine.
        streaming: Whether the answer is sent in chunks.
        num_draft_tokens: Draft tokens per round; None for the server's default.
        use_draft_logits: Whether draft tokens are accepted by the ratio rule, with the draft's logits.
        session_id: Session whose requests share acceptance rates and earlier answers; "" for none.
        guide: Limits the output; None for none.
    """

    request: GenerationRequest
    streaming: bool
    num_draft_tokens: int | None
    use_draft_logits: bool
    session_id: str
    guide: Guide | None = None


def parse_call(
    inputs: Inputs, request_id: str, vocabulary: Vocabulary, end_ids: tuple[int, ...], timeout_us: int = 0
) -> GenerationCall:
    """Build the request that the tensors describe.

    Args:
        inputs: Tensors by name; optional ones may be absent.
        request_id: Id of the request inside the server.
        vocabulary: Bytes of the tokens, for stop words and bad words.
        end_ids: Default end tokens. The request's own ``end_id`` replaces them; a negative one means none.
        timeout_us: The client's time limit in microseconds; 0 for none.

    Raises:
        InvalidRequestError: A tensor has an invalid shape or value.
    """
    input_ids = read_token_ids(inputs, "input_ids")
    num_input = read_scalar(inputs, "input_lengths", int, len(input_ids))
    if num_input != len(input_ids):
        raise InvalidRequestError(
            "input_lengths does not match input_ids",
            values=f"input_lengths={num_input}, input_ids has {len(input_ids)} tokens",
            limit="they must be equal: one request per call, no padding",
            remedy="send the number of tokens in input_ids",
        )
    own_end_id = read_scalar(inputs, "end_id", int, None)
    if own_end_id is not None:
        end_ids = (own_end_id,) if own_end_id >= 0 else ()
    request = GenerationRequest(
        request_id=request_id,
        input_ids=input_ids,
        max_tokens=read_scalar(inputs, "request_output_len", int, 0),
        prompt_length=read_scalar(inputs, "prompt_length", int, num_input),
        draft_input_ids=read_token_ids(inputs, "draft_input_ids"),
        draft_logits=_read_draft_logits(inputs),
        sampling=read_sampling(inputs),
        end_ids=end_ids,
        stop_words=_read_words(inputs, vocabulary, WordKind.STOP),
        bad_words=_read_words(inputs, vocabulary, WordKind.BAD),
        num_log_probs=_read_num_log_probs(inputs),
        prompt_log_probs=read_scalar(inputs, "return_prompt_log_probs", bool, False),
        return_generation_logits=read_scalar(inputs, "return_generation_logits", bool, False),
        independent_noise=read_scalar(inputs, "independent_noise", bool, False),
        deadline_s=time.monotonic() + timeout_us / 1e6 if timeout_us else None,
    )
    return GenerationCall(
        request=request,
        streaming=read_scalar(inputs, "streaming", bool, False),
        num_draft_tokens=read_scalar(inputs, "num_draft_tokens", int, None),
        use_draft_logits=read_scalar(inputs, "use_draft_logits", bool, False),
        session_id=read_id(inputs, "session_id"),
        guide=_read_guide(inputs),
    )


def is_stop(inputs: Inputs) -> bool:
    """Whether this is a request to stop the running requests with the same id, as in TensorRT-LLM."""
    return bool(read_scalar(inputs, "stop", bool, False))


def _read_words(inputs: Inputs, vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    matrix = without_batch(inputs, kind.list_tensor)
    return () if matrix is None else unpack_words(matrix, vocabulary, kind)


def _read_guide(inputs: Inputs) -> Guide | None:
    kind, text = (decode_utf8(read_scalar(inputs, name, bytes, b""), name) for name in GUIDE_TENSORS)
    if not kind and not text:
        return None
    if not kind or (not text and kind != "json"):
        raise InvalidRequestError(
            "a guide needs its type and its text",
            values=f"{GUIDE_TENSORS[0]}={kind!r:.100}, {GUIDE_TENSORS[1]} of {len(text)} characters",
            limit=f"both tensors; the type is one of {', '.join(GUIDE_TYPES)}, and only json has no text",
            remedy="send both, or neither",
        )
    return Guide(kind, text)


def _read_num_log_probs(inputs: Inputs) -> int | None:
    if read_scalar(inputs, "return_log_probs", bool, False):
        num_log_probs: int = read_scalar(inputs, "num_log_probs", int, 0)
        return num_log_probs
    if "num_log_probs" in inputs:
        raise InvalidRequestError(
            "num_log_probs needs return_log_probs",
            values="num_log_probs without return_log_probs=true",
            limit="num_log_probs is the number of alternatives returned with the log probabilities",
            remedy="send return_log_probs=true, or leave num_log_probs out",
        )
    return None


def _read_draft_logits(inputs: Inputs) -> Logits | None:
    array = without_batch(inputs, "draft_logits")
    return None if array is None else np.ascontiguousarray(array, dtype=np.float32)
