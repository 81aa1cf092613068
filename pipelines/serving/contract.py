"""The tensors of a request to ``draft``, ``target`` or ``speculative``, turned into a request.

Names, types and shapes are TensorRT-LLM's (its ``tensorrt_llm`` model), with
``prompt_length`` and ``num_draft_tokens`` added. Arrays come with the leading batch dimension of 1.
Ranges are checked where the limits are known: where the request is answered.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.serving.stop_words_list import unpack_stop_words
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling_params import SamplingParams
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.text.vocabulary import Vocabulary

Inputs = Mapping[str, npt.NDArray[Any]]

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
    """

    request: GenerationRequest
    streaming: bool
    num_draft_tokens: int | None


def parse_call(
    inputs: Inputs, request_id: str, vocabulary: Vocabulary, end_id: int | None, timeout_us: int = 0
) -> GenerationCall:
    """Build the request that the tensors describe.

    Args:
        inputs: Tensors by name; optional ones may be absent.
        request_id: Names the request from here on.
        vocabulary: Bytes of the tokens, for stop words.
        end_id: End token if the request names none; a negative ``end_id`` in the request means none.
        timeout_us: Time the client allows, in microseconds; 0 for no limit.

    Raises:
        InvalidRequestError: A tensor has a shape or a value that has no meaning.
    """
    input_ids = _token_ids(inputs, "input_ids")
    num_input = _scalar(inputs, "input_lengths", int, len(input_ids))
    if num_input != len(input_ids):
        raise InvalidRequestError(
            "input_lengths does not match input_ids",
            values=f"input_lengths={num_input}, input_ids has {len(input_ids)} tokens",
            limit="they must be equal: one request per call, no padding",
            remedy="send the number of tokens in input_ids",
        )
    wanted_end_id = _scalar(inputs, "end_id", int, -1 if end_id is None else end_id)
    stop_words_list = inputs.get("stop_words_list")
    request = GenerationRequest(
        request_id=request_id,
        input_ids=input_ids,
        max_tokens=_scalar(inputs, "request_output_len", int, 0),
        prompt_length=_scalar(inputs, "prompt_length", int, num_input),
        draft_input_ids=_token_ids(inputs, "draft_input_ids"),
        sampling=SamplingParams(
            temperature=_scalar(inputs, "temperature", float, 0.0),
            top_k=_scalar(inputs, "runtime_top_k", int, 0),
            top_p=_scalar(inputs, "runtime_top_p", float, 1.0),
            seed=_scalar(inputs, "seed", int, 0),
        ),
        end_id=wanted_end_id if wanted_end_id >= 0 else None,
        stop_words=() if stop_words_list is None else unpack_stop_words(stop_words_list[0], vocabulary),
        deadline_s=time.monotonic() + timeout_us / 1e6 if timeout_us else None,
    )
    return GenerationCall(
        request=request,
        streaming=_scalar(inputs, "streaming", bool, False),
        num_draft_tokens=(
            _scalar(inputs, "num_draft_tokens", int, 0) if "num_draft_tokens" in inputs else None
        ),
    )


def is_stop(inputs: Inputs) -> bool:
    """Whether this asks to end the running request of the same id (``stop``, as in TensorRT-LLM)."""
    return bool(_scalar(inputs, "stop", bool, False))


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


def _token_ids(inputs: Inputs, name: str) -> TokenIds:
    array = inputs.get(name)
    if array is None:
        return NO_TOKENS
    return np.ascontiguousarray(array.reshape(-1), dtype=np.int32)


def _scalar(inputs: Inputs, name: str, kind: type[Any], default: Any) -> Any:
    array = inputs.get(name)
    if array is None:
        return default
    if array.size != 1:
        raise InvalidRequestError(
            f"{name} must be one value",
            values=f"shape {list(array.shape)}",
            limit="shape [1, 1]",
            remedy="send one request per call",
        )
    return kind(array.reshape(-1)[0])
