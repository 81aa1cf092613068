"""Makes and reads single tensors, which have a leading batch dimension of 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

Inputs = Mapping[str, npt.NDArray[Any]]

MAX_ID_BYTES = 256  # for request ids, session ids and names of arms; a UUID has 36


def read_scalar(inputs: Inputs, name: str, kind: type[Any], default: Any) -> Any:
    """Return the value of a tensor with one element, or the default if the tensor is absent.

    Raises:
        InvalidRequestError: There is not exactly one value, or it has the wrong type.
    """
    array = inputs.get(name)
    if array is None:
        return default
    check_one_value(inputs, name)
    value = array.reshape(-1)[0]
    try:
        if kind is bytes and not isinstance(value, bytes):  # bytes(n) would create n zero bytes
            raise TypeError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequestError(
            f"{name} has a value of the wrong type",
            values=f"{name}={value!r:.80}",
            limit=f"one {kind.__name__}",
            remedy="send the type given in the model's configuration",
        ) from None


def check_one_value(inputs: Inputs, name: str) -> None:
    """Refuse a tensor that does not have exactly one value.

    Raises:
        InvalidRequestError: There are several values or none.
    """
    array = inputs[name]
    if array.size != 1:
        raise InvalidRequestError(
            f"{name} must be one value",
            values=f"shape {list(array.shape)}",
            limit="shape [1, 1]",
            remedy="send one request per call",
        )


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
            f"{name} must hold one request",
            values=f"shape {list(array.shape)}",
            limit="a first dimension of 1",
            remedy="send one request per call",
        )
    first: npt.NDArray[Any] = array[0]
    return first


def read_token_ids(inputs: Inputs, name: str) -> TokenIds:
    """Return token ids as int32 [n]; empty if the tensor is absent.

    Raises:
        InvalidRequestError: The tensor has another type.
    """
    array = inputs.get(name)
    if array is None:
        return NO_TOKENS
    if array.dtype != np.int32:
        raise InvalidRequestError(
            f"{name} has the wrong type",
            values=f"{array.dtype.name}",
            limit="int32",
            remedy="send token ids as INT32",
        )
    return np.ascontiguousarray(array.reshape(-1))


def text_tensor(text: bytes | str) -> npt.NDArray[np.object_]:
    """Return a string as BYTES [1, 1]."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return np.array([[data]], dtype=np.object_)


def scalar_tensor(value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a number as [1, 1]."""
    return np.array([[value]], dtype=dtype)


def is_same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two tensors have the same shape and the same bytes."""
    if one.dtype == np.object_:  # its bytes are addresses
        return bool(one.tolist() == other.tolist())
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def read_id(inputs: Inputs, name: str) -> str:
    """Return an input that holds an id; "" if it is absent.

    Raises:
        InvalidRequestError: It is too long or not UTF-8, or there are several values.
    """
    data: bytes = read_scalar(inputs, name, bytes, b"")
    if len(data) > MAX_ID_BYTES:
        raise InvalidRequestError(
            f"the {name} is too long",
            values=f"{len(data)} bytes",
            limit=f"at most {MAX_ID_BYTES} bytes",
            remedy="send a shorter one, such as a UUID or a digest of the long one",
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
            f"{name} is not valid UTF-8",
            values=f"byte 0x{error.object[error.start]:02x} at position {error.start}",
            limit="text must be UTF-8",
            remedy="encode it as UTF-8",
        ) from None
