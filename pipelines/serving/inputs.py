"""Tensors of a request, read one by one. They come with the leading batch dimension of 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

Inputs = Mapping[str, npt.NDArray[Any]]


def read_scalar(inputs: Inputs, name: str, kind: type[Any], default: Any) -> Any:
    """The one value of a tensor, or the default if it is absent.

    Raises:
        InvalidRequestError: There are several values, or none.
    """
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


def read_token_ids(inputs: Inputs, name: str) -> TokenIds:
    """A row of token ids, int32 [n]; empty if it is absent."""
    array = inputs.get(name)
    if array is None:
        return NO_TOKENS
    return np.ascontiguousarray(array.reshape(-1), dtype=np.int32)
