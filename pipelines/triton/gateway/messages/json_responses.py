"""Converts gRPC responses to HTTP responses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pipelines.triton.gateway.messages.json_values import NUMPY_TYPES


def generate_document(response: Any) -> bytes:
    """Return the JSON of ``generate`` or of one event of ``generate_stream``.

    Args:
        response: The ``ModelInferResponse``. Tensors with several values become arrays.
    """
    document: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        values = _values(tensor.datatype, raw)
        document[tensor.name] = values[0] if len(values) == 1 else values
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def infer_document(response: Any, binary: set[str] | None) -> tuple[bytes, int | None]:
    """Return the body of ``infer``, and the length of its JSON if binary data follows.

    Args:
        response: The ``ModelInferResponse``.
        binary: Names of outputs to send as binary data; None for all.
    """
    outputs, data = [], []
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        described: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if binary is None or tensor.name in binary:
            described["parameters"] = {"binary_data_size": len(raw)}
            data.append(raw)
        else:
            described["data"] = _values(tensor.datatype, raw)
        outputs.append(described)
    document: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    written = json.dumps({**document, "outputs": outputs}, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join([written, *data]), len(written) if data else None


def _values(datatype: str, raw: bytes) -> list[Any]:
    if datatype != "BYTES":
        values: list[Any] = np.frombuffer(raw, NUMPY_TYPES[datatype]).tolist()
        return values
    items, start = [], 0
    while start < len(raw):
        stop = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        items.append(raw[start + 4 : stop].decode("utf-8", "replace"))
        start = stop
    return items
