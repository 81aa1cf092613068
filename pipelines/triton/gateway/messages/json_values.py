"""Reads JSON of clients strictly and checks each number against the type of its input.

Over HTTP, Triton 2.51 truncates numbers to the type of their input: 4294967299 becomes 3. Here they are
refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.messages.inference_checks import quoted

NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    **{"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64},
    **{"UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64},
    **{"FP16": np.float16, "FP32": np.float32, "FP64": np.float64},
}
"""numpy types by KServe's type names, for values that JSON can represent; BYTES are strings."""

_MAX_DEPTH = 8
_SURROGATE = "\\ud"  # as escaped in JSON


def read_object(body: bytes) -> dict[str, Any]:
    """Read a body that is a JSON object.

    Raises:
        InvalidRequestError: It is not an object, is nested too deeply, or has duplicate names or half of a
            surrogate pair.
    """
    try:
        text = body.decode("utf-8")  # json.loads would guess the encoding and be lenient
        document = json.loads(text, object_pairs_hook=_unique)
        if _SURROGATE in text.lower():
            json.dumps(document, ensure_ascii=False).encode("utf-8")  # raises for half of a pair
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "the body cannot be read",
            values=str(error)[:200] if isinstance(error, ValueError) else "nested too deeply",
            limit="one JSON object in UTF-8, each name once",
            remedy="send the body as JSON",
        ) from None
    if not isinstance(document, dict) or _depth(document) > _MAX_DEPTH:
        raise InvalidRequestError(
            "the body has the wrong form",
            values=f"{type(document).__name__}, nested {_depth(document)} deep",
            limit=f"a JSON object, nested at most {_MAX_DEPTH} deep",
            remedy="send the inputs of the model as the members of one object",
        )
    return document


def member(parent: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Return one member of an object.

    Args:
        parent: The object.
        name: Name of the member.
        kind: ``dict``, ``list`` or ``str``.
        default: Value if the member is absent; None if it is required.

    Raises:
        InvalidRequestError: The member is absent or has another type.
    """
    found = parent.get(name, default)
    if not isinstance(found, kind):
        words: dict[type, str] = {dict: "an object", list: "an array", str: "a string"}
        raise InvalidRequestError(
            f"{name} is missing or has the wrong type",
            values=quoted(json.dumps(found)),
            limit=words[kind],
            remedy="send the request as KServe's protocol describes it",
        )
    return found


def to_array(name: str, datatype: str, value: Any) -> npt.NDArray[Any]:
    """Convert a JSON value or nested arrays of values to an array of the input's type.

    Args:
        name: Name of the input.
        datatype: KServe's type name.
        value: Result of ``json.loads``.

    Returns:
        An array of ``bytes`` for BYTES, otherwise of the type itself; without dimensions for a single value.

    Raises:
        InvalidRequestError: A value does not fit the type, or rows have different lengths.
    """
    if datatype != "BYTES" and datatype not in NUMPY_TYPES:
        raise InvalidRequestError(
            f"the type of {quoted(name)} is unknown",
            values=quoted(datatype),
            limit=f"BYTES, {', '.join(NUMPY_TYPES)}",
            remedy="send the type given in the model's configuration",
        )
    values, shape = _flat(name, value)  # NaN and Infinity, which Python accepts, fit no type
    for each in values:
        if not _fits(datatype, each):
            raise InvalidRequestError(
                f"{_shown(name)} has a value that does not fit its type",
                values=f"{_shown(name)}="
                + (repr(each) if isinstance(each, float) else quoted(json.dumps(each))),
                limit=_range(datatype),
                remedy="send a value of that type; numbers are never truncated",
            )
    if datatype == "BYTES":
        array = np.empty(len(values), np.object_)
        array[:] = [each.encode("utf-8") for each in values]
    else:
        array = np.array(values, NUMPY_TYPES[datatype])
    return array.reshape(shape)


def _shown(name: str) -> str:
    """Return a valid name as it is, and quote an invalid one."""
    return name if name.isidentifier() and quoted(name) == repr(name) else quoted(name)


def _flat(name: str, value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values of nested arrays in order, and their shape."""
    values: list[Any] = [value]
    shape: tuple[int, ...] = ()
    while values and isinstance(values[0], list):
        lengths = {len(each) if isinstance(each, list) else -1 for each in values}
        if len(lengths) > 1:
            raise InvalidRequestError(
                f"the rows of {_shown(name)} have different lengths",
                values=f"lengths {sorted(lengths)[:4]}",
                limit="all rows must have the same length",
                remedy="send an array whose rows have the same length",
            )
        shape = (*shape, *lengths)
        values = [item for each in values for item in each]
    return values, shape


def _fits(datatype: str, value: Any) -> bool:
    if datatype == "BYTES":
        return isinstance(value, str)
    if datatype == "BOOL":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    kind: np.dtype[Any] = np.dtype(NUMPY_TYPES[datatype])
    if kind.kind == "f":
        return abs(value) <= _largest(kind)
    limits = np.iinfo(kind)
    return isinstance(value, int) and int(limits.min) <= value <= int(limits.max)


def _range(datatype: str) -> str:
    if datatype in ("BYTES", "BOOL"):
        return {"BYTES": "BYTES: a string", "BOOL": "BOOL: true or false"}[datatype]
    kind: np.dtype[Any] = np.dtype(NUMPY_TYPES[datatype])
    if kind.kind == "f":
        return f"{datatype}: a number, at most {_largest(kind):g} in size"
    limits = np.iinfo(kind)
    return f"{datatype}: a whole number from {limits.min} to {limits.max}"


def _largest(kind: np.dtype[Any]) -> float:
    return float(np.finfo(kind.type).max)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return document


def _depth(value: Any) -> int:
    """Return the nesting depth of objects and arrays; 0 for a plain value."""
    level: list[Any] = [[value]]
    depth = -1
    while level:
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        depth += 1
    return depth
