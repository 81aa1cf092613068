"""Open GGUF files: their metadata, and where their tensors are.

Every count, length and offset is checked against the size of the file before memory is asked for. Files are
read and never mapped: one that is truncated meanwhile is an error then, not the end of the process.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; sizes of types: llama.cpp, ``ggml.c``.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from build.checkpoints.settings import Settings, did_you_mean
from build.checkpoints.tensor_file import AnyArray
from pipelines.atomic_file import version_of
from pipelines.errors import CheckpointError


@dataclass(frozen=True)
class StoredType:
    """A type of tensors.

    Attributes:
        name: Its name in llama.cpp.
        block: Weights of a block.
        num_bytes: Bytes of a block.
        dtype: Type of its numbers; uint8 for blocks.
    """

    name: str
    block: int
    num_bytes: int
    dtype: np.dtype[Any] = field(default=np.dtype(np.uint8))

    @property
    def is_float(self) -> bool:
        """Return whether its tensors are plain numbers; those of BF16 are the bits."""
        return self.block == 1


TYPES: Mapping[int, StoredType] = {
    0: StoredType("F32", 1, 4, np.dtype("<f4")),
    1: StoredType("F16", 1, 2, np.dtype("<f2")),
    30: StoredType("BF16", 1, 2, np.dtype("<u2")),
    2: StoredType("Q4_0", 32, 18),
    3: StoredType("Q4_1", 32, 20),
    6: StoredType("Q5_0", 32, 22),
    7: StoredType("Q5_1", 32, 24),
    8: StoredType("Q8_0", 32, 34),
    12: StoredType("Q4_K", 256, 144),
    13: StoredType("Q5_K", 256, 176),
    14: StoredType("Q6_K", 256, 210),
}
"""Types that are read, by their number in the file."""

STORED_TYPES = {each.name: each for each in TYPES.values()}
"""The same by name."""

_ANOTHER = "use a file of another quantization, or the checkpoint that the file was made from"
# Whoever has one of these should read its name in the error, not a number.
_REFUSED = {
    **{9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS"},
    **{19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32"},
    **{27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor, still in its file.

    Attributes:
        type: Its type.
        shape: Dimensions, outermost first.
        path: The file.
        version: That of the file when it was opened (``version_of``).
        offset: Its first byte there.
    """

    type: StoredType
    shape: tuple[int, ...]
    path: Path
    version: tuple[int, ...] | None
    offset: int

    @property
    def num_bytes(self) -> int:
        """Return its bytes in the file."""
        return math.prod(self.shape) // self.type.block * self.type.num_bytes

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return ``shape``, or [rows, bytes of a row] for blocks."""
        if self.type.is_float:
            return self.shape
        return math.prod(self.shape[:-1]), self.shape[-1] // self.type.block * self.type.num_bytes

    def read(self) -> AnyArray:
        """Return its numbers or bytes, of ``stored_shape``.

        Raises:
            CheckpointError: The file has changed since it was opened.
        """
        count = self.num_bytes // self.type.dtype.itemsize
        data = np.fromfile(self.path, self.type.dtype, count, offset=self.offset)
        if len(data) < count or version_of(self.path) != self.version:
            raise CheckpointError(f"{self.path}: the file changed while it was read", "run the command again")
        return data.reshape(self.stored_shape)


@dataclass(frozen=True)
class GgufFile:
    """A file, or all parts of one, whose tensors lie inside of it.

    Attributes:
        path: The file, or its first part.
        metadata: Its metadata by name; arrays of numbers are numpy's.
        tensors: Its tensors by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """Return ``general.architecture``."""
        return str(self.value("general.architecture", str, ""))

    def settings(self) -> Settings:
        """Return the metadata of the architecture, without its name before them."""
        prefix = f"{self.architecture}."
        own = {
            name.removeprefix(prefix): value
            for name, value in self.metadata.items()
            if name.startswith(prefix)
        }
        return Settings(own, self.path)

    def value(self, name: str, kind: type, default: Any = None) -> Any:
        """Return a value of the metadata; the default if it is absent.

        Raises:
            CheckpointError: It is of another type.
        """
        value = self.metadata.get(name, default)
        if value is not default and type(value) is not kind:
            raise self.fail(f"{name}={value!r:.80} is no {kind.__name__}")
        return value

    def fail(self, what: str, remedy: str = _ANOTHER) -> CheckpointError:
        """Return the error that refuses the file."""
        return CheckpointError(f"{self.path}: {what}", remedy)


_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_PARTS = 999


def part_names(name: str) -> list[str]:
    """Return the names of all parts of a file, the first one first, by the name of any of them."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["count"]) <= _MOST_PARTS:
        return [name]
    count = match["count"]
    return [f"{match['name']}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts of a file.

    Raises:
        CheckpointError: One is missing.
    """
    paths = [path.with_name(name) for name in part_names(path.name)]
    missing = [each for each in paths if not each.is_file()]
    if missing:
        raise CheckpointError(
            f"{missing[0]} does not exist; {len(missing)} of {len(paths)} files are missing",
            did_you_mean(missing[0], "download the missing files, or check the path"),
        )
    return paths


def open_gguf(path: Path) -> GgufFile:
    """Read the metadata of a file, and find its tensors.

    Args:
        path: The file, or any part of a split one.

    Raises:
        CheckpointError: It is missing, incomplete or damaged, or has a type of tensors that is not read.
    """
    paths = part_paths(path)
    parts = [_open_part(each) for each in paths]
    first, tensors = parts[0], dict[str, StoredTensor]()
    for number, part in enumerate(parts):
        place, count = part.value("split.no", int, 0), part.value("split.count", int, 0) or 1
        if (place, count) != (number, len(parts)):
            raise part.fail(
                f"this is not the part that its name says: split.no={place}, split.count={count}",
                "give the parts the names that they were published under: ...-00001-of-0000N.gguf",
            )
        twice = sorted(set(tensors) & set(part.tensors))
        if twice:
            raise part.fail(f"{twice[0]:.80} is in two parts")
        tensors.update(part.tensors)
    wanted = first.value("split.tensors.count", int, len(tensors))
    if wanted != len(tensors):
        raise first.fail(f"split.tensors.count={wanted}, and the parts have {len(tensors)} tensors")
    return GgufFile(first.path, first.metadata, tensors)


def _open_part(path: Path) -> GgufFile:
    with path.open("rb") as opened:
        reader = _Reader(opened)
        try:
            metadata, entries = reader.header()
            alignment = metadata.get("general.alignment", 32)
            if type(alignment) is not int or alignment < 8 or alignment % 8:
                raise _DamagedError(f"general.alignment={alignment!r:.80}")
            others = {entry.type for entry in entries if entry.type not in TYPES}
            if others:
                names = ", ".join(sorted(_REFUSED.get(each, f"type {each}") for each in others)[:9])
                supported = f"supported: {', '.join(STORED_TYPES)}"
                raise CheckpointError(
                    f"{path} has tensors of types that are not read: {names}; {supported}", _ANOTHER
                )
            tensors = _placed(path, entries, -(-reader.position // alignment) * alignment, alignment)
            end = max((each.offset + each.num_bytes for each in tensors.values()), default=0)
            if end > reader.size:
                raise _DamagedError(f"the tensors end at byte {end}")
        except (_DamagedError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{path} is no whole little-endian file of GGUF version 2 or 3: byte {reader.position} of "
                f"{reader.size}: {error}",
                "download the file again",
            ) from None
    return GgufFile(path, metadata, tensors)


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


class _DamagedError(Exception):
    """The header contradicts the format, or the size of the file."""


_TEXT, _ARRAY = 8, 9
_NUMBERS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"},
    **{10: "<Q", 11: "<q", 12: "<d"},
}
_MOST_ITEMS = 1 << 21  # of all arrays; vocabularies and merges are below a million
_MOST_ENTRIES = 1 << 16  # values, and tensors
_MOST_BYTES = 1 << 24  # of a text or an array of numbers; chat templates are below a million
_MOST_HEADER = 1 << 26  # bytes; a vocabulary of 200,000 tokens with its merges has 13 million


class _Reader:
    """Reads a header from its begin to its end.

    Attributes:
        size: Bytes of the file.
        position: Bytes that were read.
    """

    def __init__(self, opened: BinaryIO) -> None:
        self.size, self.position = os.fstat(opened.fileno()).st_size, 0
        self._opened, self._items_left = opened, _MOST_ITEMS

    def header(self) -> tuple[dict[str, Any], list[_Entry]]:
        if self._take(4) != b"GGUF":
            raise _DamagedError("it does not begin with GGUF")
        version = self._number("<I")
        if version not in (2, 3):
            order = ", in the other byte order" if version and not version & 0xFFFF else ""
            raise _DamagedError(f"version {version}{order}")
        num_tensors, num_values = self._number("<Q"), self._number("<Q")
        metadata = dict[str, Any]()
        for _ in range(self._checked(num_values, 13, _MOST_ENTRIES)):
            name = self._text()
            if name in metadata:
                raise _DamagedError(f"{name:.80} is there twice")
            metadata[name] = self._value(self._number("<I"))
        return metadata, [self._entry() for _ in range(self._checked(num_tensors, 32, _MOST_ENTRIES))]

    def _entry(self) -> _Entry:
        name, num_dimensions = self._text(), self._number("<I")
        if not 1 <= num_dimensions <= 4:
            raise _DamagedError(f"{name:.80} has {num_dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(num_dimensions))[::-1]
        return _Entry(name, shape, self._number("<I"), self._number("<Q"))

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
            dtype = None if kind == _TEXT else np.dtype(self._form(kind))
            self._items_left -= self._checked(count, dtype.itemsize if dtype else 8, self._items_left)
            if dtype is None:
                return [self._text() for _ in range(count)]
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        return self._number(self._form(kind))

    def _form(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise _DamagedError(f"a value of type {kind}")
        return _NUMBERS[kind]

    def _text(self) -> str:
        return self._take(int.from_bytes(self._take(8), "little")).decode("utf-8")

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _checked(self, count: int, least_bytes: int, most: int) -> int:
        """Return a number of items that fits into the rest of the file."""
        if count > min((self.size - self.position) // least_bytes, most):
            raise _DamagedError(f"{count} items")
        return count

    def _take(self, num_bytes: int) -> bytes:
        is_small = num_bytes <= min(_MOST_BYTES, _MOST_HEADER - self.position)
        taken = self._opened.read(num_bytes) if is_small else b""
        if len(taken) < num_bytes:
            raise _DamagedError(f"{num_bytes} bytes are wanted")
        self.position += num_bytes
        return taken


def _placed(path: Path, entries: Sequence[_Entry], begin: int, alignment: int) -> dict[str, StoredTensor]:
    """Return the tensors of whole blocks that do not overlap."""
    tensors = dict[str, StoredTensor]()
    end, version = begin, version_of(path)
    for entry in sorted(entries, key=lambda each: each.offset):
        tensor = StoredTensor(TYPES[entry.type], entry.shape, path, version, begin + entry.offset)
        where = f"{entry.name:.80}: {tensor.type.name} {list(entry.shape)} at byte {tensor.offset}"
        if entry.name in tensors:
            raise _DamagedError(f"{entry.name:.80} is there twice")
        if not math.prod(entry.shape) or entry.shape[-1] % tensor.type.block:
            raise _DamagedError(f"{where} is no whole number of blocks")
        if entry.offset % alignment or tensor.offset < end:
            raise _DamagedError(f"{where} overlaps another, or is not at a multiple of {alignment}")
        end = tensor.offset + tensor.num_bytes
        tensors[entry.name] = tensor
    return tensors
