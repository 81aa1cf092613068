"""Calls the attention kernel as numpy arrays, and computes the same in float64."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.engine_memory import block_bytes
from tests.unit.build.operators.calls import compile_calls

BLOCK = 32
DTYPES = ("float32", "float16", "int8")
Floats = npt.NDArray[np.float32]


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("num_heads", "num_kv_heads", "head_size")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", ctypes.c_int),
        ("precision", ctypes.c_int),
        ("sinks", ctypes.c_void_p),
    )


_ARRAYS = (
    *("query", "key", "value", "key_cache", "value_cache"),
    *("past_lens", "sequence_begins", "blocks", "block_begins"),
)


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        ("num_sequences", ctypes.c_int),
        ("output", ctypes.c_void_p),
    )


@functools.cache
def has_wide_lanes() -> bool:
    return " avx512f " in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def compile_kernel(folder: Path) -> ctypes.CDLL:
    """Compile both forms of the kernel."""
    source = Path(__file__).with_name("kernel_calls.cpp")
    return compile_calls(folder, source, "attention_avx2", "attention_avx512")


@dataclass(frozen=True)
class Shape:
    num_kv_heads: int
    group: int
    head_size: int
    window: int = 0
    dtype: str = "float32"
    softcap: float = 0.0
    has_sinks: bool = False

    @property
    def sinks(self) -> Floats | None:
        """Return sinks [heads] from far below the scores of ``Tokens.draw`` to above them."""
        return np.linspace(-30, 30, self.num_heads, dtype=np.float32) if self.has_sinks else None

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def scale(self) -> float:
        return self.head_size**-0.5


@dataclass(frozen=True)
class Tokens:
    """Queries [n, heads, size], keys and values [n, kv_heads, size] of consecutive tokens of a request."""

    query: Floats
    key: Floats
    value: Floats

    @classmethod
    def draw(cls, shape: Shape, count: int, rng: np.random.Generator) -> Tokens:
        def normal(heads: int, scale: float) -> Floats:
            drawn = scale * rng.standard_normal((count, heads, shape.head_size)) + 0.3
            return drawn.astype(np.float32)

        return cls(normal(shape.num_heads, 2), normal(shape.num_kv_heads, 2), normal(shape.num_kv_heads, 1))

    def __len__(self) -> int:
        return len(self.query)

    def part(self, begin: int, end: int) -> Tokens:
        return Tokens(self.query[begin:end], self.key[begin:end], self.value[begin:end])


@dataclass(frozen=True)
class Piece:
    """Tokens of a request in a step, as one sequence or as rows."""

    tokens: Tokens
    start: int
    blocks: Sequence[int]
    as_rows: bool


class Kernel:
    """The kernel with a cache of its own."""

    def __init__(self, calls: ctypes.CDLL, shape: Shape, num_blocks: int, *, is_wide: bool) -> None:
        self.shape = shape
        self._calls = calls
        self._is_wide = is_wide
        width = block_bytes(BLOCK, 1, shape.num_kv_heads, shape.head_size, shape.dtype) // 2
        # Whatever a block held before must not matter: 255 is NaN in each type of floating point.
        self.caches = [np.full((num_blocks, width), 255, np.uint8) for _ in range(2)]

    def step(self, *pieces: Piece, num_threads: int = 1) -> list[Floats]:
        """Return the outputs [n, heads, size] of each piece."""
        past_lens: list[int] = []
        lengths: list[int] = []
        blocks: list[int] = []
        num_blocks: list[int] = []
        for piece in pieces:
            count = len(piece.tokens)
            used = piece.blocks[: -(-(piece.start + count) // BLOCK)]
            starts = range(piece.start, piece.start + count) if piece.as_rows else [piece.start]
            past_lens.extend(starts)
            lengths.extend([1] * count if piece.as_rows else [count])
            blocks.extend([*used] * len(starts))
            num_blocks.extend([len(used)] * len(starts))
        inputs = {
            **{
                name: np.concatenate([getattr(piece.tokens, name) for piece in pieces])
                for name in ("query", "key", "value")
            },
            **dict(zip(("key_cache", "value_cache"), self.caches, strict=True)),
            "past_lens": np.array(past_lens, np.int32),
            "sequence_begins": np.cumsum([0, *lengths], dtype=np.int32),
            "blocks": np.array(blocks, np.int32),
            "block_begins": np.cumsum([0, *num_blocks], dtype=np.int32),
        }
        output = np.full_like(inputs["query"], np.nan)
        shape = self.shape
        sizes = (shape.num_heads, shape.num_kv_heads, shape.head_size)
        settings = (shape.scale, shape.softcap, shape.window, DTYPES.index(shape.dtype))
        sinks = shape.sinks
        layer = _Layer(*sizes, *settings, None if sinks is None else sinks.ctypes.data)
        pointers = [array.ctypes.data for array in inputs.values()]
        step = _Step(*pointers, len(past_lens), output.ctypes.data)
        self._calls.attend(
            ctypes.byref(layer), ctypes.byref(step), ctypes.c_bool(self._is_wide), ctypes.c_int(num_threads)
        )
        ends = np.cumsum([len(piece.tokens) for piece in pieces])
        return np.split(output, ends[:-1])


def rounded(values: Floats, dtype: str) -> npt.NDArray[np.float64]:
    """Return values [..., size] as a cache holds them."""
    if dtype == "int8":
        low = values.min(axis=-1, keepdims=True)
        scale = (values.max(axis=-1, keepdims=True) - low) / np.float32(255)
        levels = np.rint((values - low) * (1 / scale))
        return levels.astype(np.float64) * scale + low
    return values.astype(dtype).astype(np.float64)


def expected_output(shape: Shape, tokens: Tokens) -> npt.NDArray[np.float64]:
    """Return the outputs [n, heads, size] of a whole request in float64."""
    keys, values = (rounded(each, shape.dtype) for each in (tokens.key, tokens.value))
    keys, values = (np.repeat(each, shape.group, axis=1).swapaxes(0, 1) for each in (keys, values))
    scores = shape.scale * (tokens.query.astype(np.float64).swapaxes(0, 1) @ keys.swapaxes(1, 2))
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    positions = np.arange(len(tokens))
    distance = positions[:, None] - positions
    is_seen = (distance >= 0) & (distance < (shape.window or len(tokens)))
    scores = np.where(is_seen, scores, -np.inf)
    if shape.sinks is not None:
        sinks = np.broadcast_to(shape.sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights[..., : len(tokens)]
    return (weights @ values).swapaxes(0, 1)
