"""Makes and reads single tensors, which have a leading batch dimension of 1.

``wire/fields.json`` lists those of requests and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.speculation.sampling.params import MAX_LOGIT_BIASES
from pipelines.wire.request import MAX_ID_BYTES

Inputs = Mapping[str, npt.NDArray[Any]]
Tensors = dict[str, npt.NDArray[Any]]


def text_tensor(text: bytes | str) -> npt.NDArray[np.object_]:
    """Return a string as BYTES [1, 1]."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return np.array([[data]], dtype=np.object_)


def scalar_tensor(value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a number as [1, 1]."""
    return np.array([[value]], dtype=dtype)


def read_scalar(inputs: Inputs, name: str, default: Any) -> Any:
    """Return the value of a tensor with one element, or the default if the tensor is absent.

    Its type is that of ``config.pbtxt``: Triton refuses another one.

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


def without_batch(inputs: Inputs, name: str) -> npt.NDArray[Any] | None:
    """Return a tensor without its batch dimension; None if it is absent.

    Raises:
        InvalidRequestError: The batch dimension is not 1.
    """
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


def read_token_ids(inputs: Inputs, name: str) -> tuple[int, ...]:
    """Return token ids; empty if the tensor is absent."""
    return tuple(inputs[name].reshape(-1).tolist()) if name in inputs else ()


def read_text(inputs: Inputs, name: str) -> str:
    """Return an input that holds a text; "" if it is absent.

    Raises:
        InvalidRequestError: It is not UTF-8, or there are several values.
    """
    return decode_utf8(read_scalar(inputs, name, b""), name)


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
    return decode_utf8(data, name)


def decode_utf8(data: bytes, name: str) -> str:
    """Decode a client's text.

    Raises:
        InvalidRequestError: The text is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{name} is not valid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}",
            "encode it as UTF-8",
        ) from None


def read_guide(inputs: Inputs) -> tuple[str, str] | None:
    """Return type and text of a guide; None if both are absent."""
    guide = read_text(inputs, "guided_decoding_guide_type"), read_text(inputs, "guided_decoding_guide")
    return guide if any(guide) else None


def read_num_log_probs(inputs: Inputs) -> int | None:
    """Return the number of alternatives; None for no log probabilities.

    Raises:
        InvalidRequestError: There is a number without ``return_log_probs``.
    """
    if read_scalar(inputs, "return_log_probs", False):
        num_log_probs: int = read_scalar(inputs, "num_log_probs", 0)
        return num_log_probs
    if "num_log_probs" in inputs:
        raise InvalidRequestError(
            "num_log_probs needs return_log_probs=true, because it is the number of alternatives",
            "send return_log_probs=true, or leave num_log_probs out",
        )
    return None


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
