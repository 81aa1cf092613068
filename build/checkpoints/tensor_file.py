"""Read and write safetensors files with numpy alone, including bfloat16 and FP8.

A file contains an eight-byte little-endian length, a JSON header of that length, and the raw bytes of
the tensors. numpy supports neither bfloat16 nor E4M3, so their bits are kept as uint16 and uint8, and
``Tensor.to_float32`` decodes them. Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.settings import MOST_BYTES, parse_object
from pipelines.atomic_file import whole_file
from pipelines.errors import CheckpointError

Float32Array = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]

# The numpy type that holds each dtype's bits. Types that no checkpoint needs, such as I64, are included so
# that a file with such a tensor can still be opened.

STORAGE: Mapping[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype("?"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
}
FLOATS = ("BF16", "F16", "F32")
_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Tensor:
    """One tensor as it is stored in a file.

    Attributes:
        dtype: Type in safetensors' notation, such as ``BF16``.
        shape: Dimensions, outermost first.
        source: Array of ``shape`` and numpy type ``STORAGE[dtype]``, where BF16 and FP8 are raw bits; or what
            reads it, each time that ``data`` is asked for.
    """

    dtype: str
    shape: tuple[int, ...]
    source: AnyArray | Callable[[], AnyArray]

    @property
    def data(self) -> AnyArray:
        """Return the array."""
        return self.source() if callable(self.source) else self.source

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)

    def to_float32(self) -> Float32Array:
        """Return the values as float32, exact for every type except F64 and large integers."""
        if self.dtype == "BF16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        if self.dtype == "F8_E4M3":
            values: Float32Array = e4m3_values()[self.data]
            return values
        if self.dtype == "F8_E5M2":
            raise CheckpointError(
                "a tensor is F8_E5M2, and FP8 weights must be E4M3",
                "export the checkpoint with ModelOpt's FP8_DEFAULT_CFG",
            )
        return self.data.astype(np.float32)

    @classmethod
    def from_float32(cls, values: Float32Array, dtype: str) -> Tensor:
        """Round float32 values to ``BF16``, ``F16`` or ``F32``; ties go to even."""
        if dtype == "BF16":
            bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
            return cls(dtype, values.shape, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
        return cls(dtype, values.shape, np.ascontiguousarray(values, dtype=STORAGE[dtype]))


@lru_cache(maxsize=1)
def e4m3_values() -> Float32Array:
    """Return the 256 values of FP8 E4M3, float32 [256]: no infinities, 0x7f and 0xff are NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[codes & 127 == 127] = np.nan
    return np.where(codes > 127, -magnitude, magnitude).astype(np.float32)


def _damaged(path: Path, detail: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a valid safetensors file: {detail}",
        "copy or export the checkpoint again; the file is probably truncated or damaged",
    )


def _header(path: Path) -> tuple[dict[str, Any], int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise _damaged(path, f"only {size} bytes")
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, MOST_BYTES):
            raise _damaged(path, f"header of {length} bytes in a file of {size}")
        try:
            header = parse_object(file.read(length))
        except ValueError as error:
            raise _damaged(path, f"the header is not JSON: {error!s:.200}") from None
    return header, 8 + length


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Map a safetensors file into memory.

    Args:
        path: The file. It must not change while the tensors are in use.

    Returns:
        Tensors by name; their arrays are read-only views of the mapped file.

    Raises:
        CheckpointError: The file is missing, truncated or damaged, or has an unsupported type.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist", "check the recipe's checkpoint path")
    header, offset = _header(path)
    mapped = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    body = mapped[offset:]
    return {name: tensor for name, tensor in _tensors(path, header, body)}


def _tensors(path: Path, header: dict[str, Any], body: AnyArray) -> Iterator[tuple[str, Tensor]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        parts = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = parts.get("dtype"), _sizes(parts, "shape"), _sizes(parts, "data_offsets")
        if dtype is None or shape is None or offsets is None or len(offsets) != 2:
            raise _damaged(path, f"the header entry of {name!r:.80} is incomplete")
        if not isinstance(dtype, str) or dtype not in STORAGE:
            raise _damaged(path, f"{name!r:.80} has the unknown type {dtype!s:.80}")
        begin, end = offsets
        storage = STORAGE[dtype]
        wanted = storage.itemsize * math.prod(shape)
        if len(shape) > _MOST_DIMENSIONS or end - begin != wanted:
            raise _damaged(path, f"{name!r:.80}: {dtype} {list(shape)} is {wanted} bytes, not {end - begin}")
        if end > body.size:
            raise _damaged(path, f"{name!r:.80} ends at byte {end}, the file holds {body.size}")
        # frombuffer accepts any alignment; safetensors guarantees none.
        count = wanted // storage.itemsize
        data = np.frombuffer(body.data, storage, count, begin) if count else np.zeros(0, storage)
        yield name, Tensor(dtype, shape, data.reshape(shape))


def _sizes(entry: dict[str, Any], key: str) -> tuple[int, ...] | None:
    """Return a list of sizes or offsets; None if it is no such list."""
    found = entry.get(key)
    if not isinstance(found, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in found):
        return None
    return tuple(found)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file atomically.

    Args:
        path: Destination; an existing file is replaced.
        tensors: Tensors by name, written in this order.
        metadata: Text entries for the header.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in tensors.items():
        size = STORAGE[tensor.dtype].itemsize * tensor.size
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor is aligned
    with whole_file(path) as made, made.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            data = np.ascontiguousarray(tensor.data, dtype=STORAGE[tensor.dtype])
            file.write(data.reshape(tensor.shape).data)
