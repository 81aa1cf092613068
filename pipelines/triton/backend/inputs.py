"""Reads requests from tensors: of clients at text models, and under TensorRT-LLM's names at engines.

Every tensor has a leading batch dimension of 1, and the type that ``config.pbtxt`` declares: Triton refuses
another. ``wire/fields.json`` lists them. Ranges are checked later, where the limits are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.speculation.sampling.params import MAX_LOGIT_BIASES, SamplingParams, draw_seed
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind
from pipelines.triton.backend.word_list import unpack_words
from pipelines.wire.fields import TEXT_INPUTS
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import MAX_ID_BYTES, CompletionRequest

Inputs = Mapping[str, npt.NDArray[Any]]

_OF_TEXT = ("add_special_tokens", "parse_special_tokens")

# Tensors of one value, named as the fields that they fill; without the tensor, a field keeps its default.
_SAMPLING = (
    *("temperature", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "min_tokens",
)
_SHARED = ("end_id", "return_prompt_log_probs", "num_draft_tokens", "use_draft_logits")
_OF_CLIENTS = (
    "max_tokens",
    "top_k",
    "top_p",
    "add_special_tokens",
    "parse_special_tokens",
    "skip_special_tokens",
)


def completion_request(inputs: Inputs) -> CompletionRequest:
    """Build the request that the tensors of a text model describe.

    Raises:
        InvalidRequestError: There is no prompt or two, or a tensor has an invalid shape, type or value.
    """
    _check_prompt(inputs)
    return CompletionRequest(
        **_scalars(inputs, (*_SAMPLING, *_SHARED, *_OF_CLIENTS)),
        prompt=_read_text(inputs, "text_input"),
        prompt_ids=_read_token_ids(inputs, "input_ids"),
        stop_token_ids=_read_token_ids(inputs, "stop_token_ids"),
        stop_words=_read_texts(inputs, "stop_words"),
        bad_words=_read_texts(inputs, "bad_words"),
        logit_bias=read_logit_bias(inputs),
        guide=_read_guide(inputs),
        num_log_probs=_read_num_log_probs(inputs),
        session_id=read_id(inputs, "session_id"),
        cache_salt=read_id(inputs, "cache_salt"),
        prediction=_read_text(inputs, "prediction"),
        arm=read_id(inputs, "arm"),
        resume_output_ids=_read_token_ids(inputs, "resume_output_ids"),
    )


def engine_request(
    inputs: Inputs, vocabulary: Vocabulary, request_id: str = "", timeout_us: int = 0
) -> EngineRequest:
    """Build the request that the tensors of an engine describe; without ``seed`` one is drawn.

    Args:
        inputs: Tensors by name; optional ones may be absent.
        vocabulary: Bytes of the tokens, for stop words and bad words.
        request_id: The client's id; need not be unique.
        timeout_us: The client's time limit in microseconds; 0 for none.

    Raises:
        InvalidRequestError: A tensor has an invalid shape or value.
    """
    input_ids = _read_token_ids(inputs, "input_ids")
    num_input = read_scalar(inputs, "input_lengths", len(input_ids))
    if num_input != len(input_ids):
        raise InvalidRequestError(
            f"input_lengths={num_input}, but input_ids has {len(input_ids)} tokens",
            "send one request per call, without padding",
        )
    sampling = {"seed": draw_seed(), **_scalars(inputs, _SAMPLING)}
    for name in ("top_k", "top_p"):
        if f"runtime_{name}" in inputs:
            sampling[name] = read_scalar(inputs, f"runtime_{name}", None)
    return EngineRequest(
        **_scalars(inputs, (*_SHARED, "prompt_length")),
        input_ids=input_ids,
        max_tokens=read_scalar(inputs, "request_output_len", 0),
        request_id=request_id,
        timeout_us=timeout_us,
        streaming=read_scalar(inputs, "streaming", False),
        sampling=SamplingParams(**sampling, logit_bias=read_logit_bias(inputs)),
        stop_token_ids=_read_token_ids(inputs, "stop_token_ids"),
        stop=_read_words(inputs, vocabulary, WordKind.STOP),
        bad_words=_read_words(inputs, vocabulary, WordKind.BAD),
        num_log_probs=_read_num_log_probs(inputs),
        guide=_read_guide(inputs),
        prediction_ids=_read_token_ids(inputs, "prediction_ids"),
        session_id=read_id(inputs, "session_id"),
        cache_salt=read_id(inputs, "cache_salt"),
    )


def refuse_choices(inputs: Inputs, arm: str) -> None:
    """Refuse an arm where one is given, and what the target alone cannot follow.

    Args:
        inputs: Tensors of the request.
        arm: The arm that alone answers the model that the client named; "" for any.

    Raises:
        InvalidRequestError: There is such an input.
    """
    if not arm:
        return
    of_draft = [name for name in inputs if TEXT_INPUTS[name].models == "draft" and arm == "control"]
    if unknown := [*of_draft, *(["arm"] if "arm" in inputs else [])]:
        raise InvalidRequestError(
            f"{', '.join(unknown)} cannot be chosen for this model, which {arm} answers",
            "leave it out, or send the request to router",
        )


def read_scalar(inputs: Inputs, name: str, default: Any) -> Any:
    """Return the value of a tensor with one element, or the default if the tensor is absent.

    Raises:
        InvalidRequestError: There is not exactly one value.
    """
    array = inputs.get(name)
    if array is None:
        return default
    if array.size != 1:
        raise InvalidRequestError(
            f"{name} has the shape {list(array.shape)}, not [1, 1]", "send one request per call"
        )
    return array.item()


def read_id(inputs: Inputs, name: str) -> str:
    """Return an input that holds an id; "" if it is absent.

    Raises:
        InvalidRequestError: It is too long or not UTF-8, or there are several values.
    """
    data: bytes = read_scalar(inputs, name, b"")
    if len(data) > MAX_ID_BYTES:
        raise InvalidRequestError(
            f"the {name} has {len(data)} bytes, more than {MAX_ID_BYTES}",
            "send a shorter one, such as a UUID or a digest of the long one",
        )
    return _decoded(data, name)


def read_logit_bias(inputs: Inputs) -> tuple[tuple[int, float], ...]:
    """Return token ids and what is added to their logits.

    Raises:
        InvalidRequestError: The tensors differ in length.
    """
    names = "logit_bias_ids", "logit_bias_values"
    num_ids, num_values = (inputs[name].size if name in inputs else 0 for name in names)
    if num_ids != num_values:
        raise InvalidRequestError(
            f"logit_bias_ids has {num_ids} ids and logit_bias_values {num_values} values",
            "send one value for each id",
        )
    most = MAX_LOGIT_BIASES + 1  # more need not be read to be refused
    ids, values = (inputs[name].reshape(-1)[:most].tolist() if name in inputs else [] for name in names)
    return tuple(zip(ids, values, strict=True))


def _scalars(inputs: Inputs, names: Iterable[str]) -> dict[str, Any]:
    return {name: read_scalar(inputs, name, None) for name in names if name in inputs}


def _check_prompt(inputs: Inputs) -> None:
    given = [name for name in ("text_input", "input_ids") if name in inputs]
    if len(given) != 1:
        raise InvalidRequestError(
            f"the request has {' and '.join(given) or 'neither text_input nor input_ids'}, not one prompt",
            "send only one of them" if given else "send text_input with a text",
        )
    if "input_ids" not in inputs:
        return
    if unused := [name for name in _OF_TEXT if name in inputs]:
        raise InvalidRequestError(
            f"{' and '.join(unused)} cannot be sent with input_ids, which are used as they are",
            "leave it out, or send text_input",
        )
    if not inputs["input_ids"].size:
        raise InvalidRequestError("the prompt is empty: input_ids gives 0 tokens", "send a prompt")


def _without_batch(inputs: Inputs, name: str) -> npt.NDArray[Any] | None:
    """Return a tensor without its batch dimension, which must be 1; None if it is absent."""
    array = inputs.get(name)
    if array is None:
        return None
    if not array.ndim or len(array) != 1:
        raise InvalidRequestError(
            f"{name} has the shape {list(array.shape)}, whose first dimension is not 1",
            "send one request per call",
        )
    first: npt.NDArray[Any] = array[0]
    return first


def _read_token_ids(inputs: Inputs, name: str) -> tuple[int, ...]:
    ids = _without_batch(inputs, name)
    return () if ids is None else tuple(ids.reshape(-1).tolist())


def _read_words(inputs: Inputs, vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    matrix = _without_batch(inputs, f"{kind.value}_list")
    return () if matrix is None else unpack_words(matrix, vocabulary, kind)


def _read_text(inputs: Inputs, name: str) -> str:
    return _decoded(read_scalar(inputs, name, b""), name)


def _read_texts(inputs: Inputs, name: str) -> tuple[str, ...]:
    texts = inputs[name].reshape(-1).tolist() if name in inputs else []
    return tuple(_decoded(text, name) for text in texts)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{name} is not valid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}",
            "encode it as UTF-8",
        ) from None


def _read_guide(inputs: Inputs) -> tuple[str, str] | None:
    """Return type and text of a guide; None if both are absent."""
    guide = _read_text(inputs, "guided_decoding_guide_type"), _read_text(inputs, "guided_decoding_guide")
    return guide if any(guide) else None


def _read_num_log_probs(inputs: Inputs) -> int | None:
    """Return the number of alternatives; None for no log probabilities."""
    if read_scalar(inputs, "return_log_probs", False):
        num_log_probs: int = read_scalar(inputs, "num_log_probs", 0)
        return num_log_probs
    if "num_log_probs" in inputs:
        raise InvalidRequestError(
            "num_log_probs needs return_log_probs=true, because it is the number of alternatives",
            "send return_log_probs=true, or leave num_log_probs out",
        )
    return None
