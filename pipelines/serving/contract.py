"""The tensors of a request to ``draft``, ``target`` or ``speculative``, turned into a request.

Names, types and shapes are TensorRT-LLM's (its ``tensorrt_llm`` model), with ``prompt_length``,
``independent_noise``, ``num_draft_tokens`` and ``use_draft_logits`` added. Ranges are checked where the
limits are known: where the request is answered.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.serving.inputs import Inputs, read_scalar, read_token_ids
from pipelines.serving.sampling_tensors import read_sampling
from pipelines.serving.word_list import WordKind, unpack_words
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_ids import Logits
from pipelines.text.vocabulary import Vocabulary

# What Triton and its clients put into a request's parameters themselves.
_TRANSPORT_PARAMETERS = frozenset(
    {"id", "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"}
)


@dataclass(frozen=True)
class GenerationCall:
    """One request as it came over the wire.

    Attributes:
        request: What is asked of the engine.
        streaming: Whether the answer comes in chunks.
        num_draft_tokens: Draft tokens per round; None for the server's default.
        use_draft_logits: Whether draft tokens are accepted by the ratio rule, with the draft's logits.
        session_id: Requests of one session share what is learnt about their text; "" for none.
    """

    request: GenerationRequest
    streaming: bool
    num_draft_tokens: int | None
    use_draft_logits: bool
    session_id: str


def parse_call(
    inputs: Inputs, request_id: str, vocabulary: Vocabulary, end_ids: tuple[int, ...], timeout_us: int = 0
) -> GenerationCall:
    """Build the request that the tensors describe.

    Args:
        inputs: Tensors by name; optional ones may be absent.
        request_id: Names the request from here on.
        vocabulary: Bytes of the tokens, for stop words and bad words.
        end_ids: End tokens of a request that names none. Its own ``end_id`` replaces them all; a negative one
            means none.
        timeout_us: Time the client allows, in microseconds; 0 for no limit.

    Raises:
        InvalidRequestError: A tensor has a shape or a value that has no meaning.
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
        return_generation_logits=read_scalar(inputs, "return_generation_logits", bool, False),
        independent_noise=read_scalar(inputs, "independent_noise", bool, False),
        deadline_s=time.monotonic() + timeout_us / 1e6 if timeout_us else None,
    )
    return GenerationCall(
        request=request,
        streaming=read_scalar(inputs, "streaming", bool, False),
        num_draft_tokens=read_scalar(inputs, "num_draft_tokens", int, None),
        use_draft_logits=read_scalar(inputs, "use_draft_logits", bool, False),
        session_id=_text(read_scalar(inputs, "session_id", bytes, b"")),
    )


def is_stop(inputs: Inputs) -> bool:
    """Whether this asks to end the running request of the same id (``stop``, as in TensorRT-LLM)."""
    return bool(read_scalar(inputs, "stop", bool, False))


def refuse_unknown_parameters(parameters: str, known_inputs: Iterable[str]) -> int:
    """Refuse inputs that Triton did not recognise and would drop in silence.

    Triton's HTTP ``generate`` endpoints make a request parameter of every JSON key that is no input of
    the model: a misspelt ``temprature`` would otherwise change nothing and tell nobody.

    Args:
        parameters: The request's parameters as JSON text.
        known_inputs: Names of the inputs there are.

    Returns:
        The ``timeout`` parameter in microseconds, 0 if there is none.

    Raises:
        InvalidRequestError: A parameter is neither Triton's own nor an input.
    """
    given: dict[str, Any] = json.loads(parameters) if parameters else {}
    known = sorted(known_inputs)
    for name in given:
        if name in _TRANSPORT_PARAMETERS or name.startswith("triton_") or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        raise InvalidRequestError(
            "the request has a parameter that nothing here uses",
            values=f"'{name}'" + (f"; did you mean '{near[0]}'?" if near else ""),
            limit=f"inputs: {', '.join(known)}",
            remedy="leave it out; parameters are refused rather than ignored",
        )
    timeout = given.get("timeout", 0)
    return timeout if isinstance(timeout, int) and timeout > 0 else 0


def _read_words(inputs: Inputs, vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    matrix = inputs.get(kind.list_tensor)
    return () if matrix is None else unpack_words(matrix[0], vocabulary, kind)


def _read_num_log_probs(inputs: Inputs) -> int | None:
    if read_scalar(inputs, "return_log_probs", bool, False):
        num_log_probs: int = read_scalar(inputs, "num_log_probs", int, 0)
        return num_log_probs
    if "num_log_probs" in inputs:
        raise InvalidRequestError(
            "num_log_probs asks for what return_log_probs does not",
            values="num_log_probs without return_log_probs=true",
            limit="num_log_probs says how many alternatives come with the log probabilities",
            remedy="send return_log_probs=true, or leave num_log_probs out",
        )
    return None


def _read_draft_logits(inputs: Inputs) -> Logits | None:
    array = inputs.get("draft_logits")
    return None if array is None else np.ascontiguousarray(array[0], dtype=np.float32)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")
