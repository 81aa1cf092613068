"""A Llama-like decoder with random weights, whose products and attention can be computed in several ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from benchmarks.gpu_rows import kernels

DEVICE = "cuda"
MOST_ROWS = 64
PAGE = 64
"""Tokens of a page of the KV cache; a split of the context is a multiple of it."""

MOST_SPLITS = 32
"""Splits of a context at most."""

_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocab: int

    def linears(self) -> dict[str, tuple[int, int]]:
        """Return name -> (outputs, inputs) of a layer's products."""
        attended = self.heads * self.head
        return {
            "qkv": (attended + 2 * self.kv_heads * self.head, self.hidden),
            "o": (self.hidden, attended),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }


SHAPES = {
    "1B": Shape(2048, 16, 32, 8, 64, 8192, 128256),
    "8B": Shape(4096, 32, 32, 8, 128, 14336, 128256),
}


@dataclass(frozen=True)
class Format:
    """Number formats of a product.

    Attributes:
        weights: Type of the weights.
        inputs: Type of the inputs.
        input_scale: What an input is multiplied by to get its value: static, so that rows stay independent.
        steps: Standard deviation of the stored weights; None where they need no scale.
    """

    weights: torch.dtype
    inputs: torch.dtype
    input_scale: float = 1.0
    steps: float | None = None


FORMATS = {
    "bf16": Format(torch.bfloat16, torch.bfloat16),
    "fp8": Format(torch.float8_e4m3fn, torch.float8_e4m3fn, 1 / 32, 32.0),
    "int8": Format(torch.int8, torch.bfloat16, 1.0, 32.0),
}


@dataclass(frozen=True)
class Tile:
    """How a product is cut: all of it decides the order of additions.

    Attributes:
        columns: Outputs of a tile.
        inner: Inputs that are multiplied at a time.
        parts: Parts of the inputs that are added up apart.
        stages: Loads in flight.
    """

    columns: int
    inner: int
    parts: int
    stages: int


Way = Callable[["Linear", Any], Any]
"""Computes ``[parts, rows, outputs]`` from a linear layer and ``[rows, inputs]``."""


class Linear:
    """The weights of a product, random."""

    def __init__(self, outputs: int, inputs: int, form: Format) -> None:
        steps = form.steps or inputs**-0.5
        scale = 1 / (steps * inputs**0.5)
        drawn = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=DEVICE) * steps
        drawn = drawn.round().clamp(-127, 127) if form.weights == torch.int8 else drawn
        self.weights = drawn.to(form.weights)
        self.form = form
        self._scale = torch.tensor(scale, device=DEVICE)
        self._input_scale = torch.tensor(form.input_scale, device=DEVICE)
        self._scales = torch.full((outputs,), scale * form.input_scale, device=DEVICE)

    @property
    def num_bytes(self) -> int:
        """Return the bytes that a product reads at least."""
        return int(self.weights.numel() * self.weights.element_size())

    def by_library(self, x: Any) -> Any:
        """Let cuBLAS choose a kernel from the number of rows."""
        if self.form.weights == torch.float8_e4m3fn:
            scales = self._input_scale, self._scale
            return torch._scaled_mm(
                x, self.weights.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True
            )[None]
        return torch.mm(x, self.weights.t())[None]

    def by_tile(self, x: Any, tile: Tile, width: int, only_compile: bool = False) -> Any:
        """Compute with one tile, in blocks of ``width`` rows."""
        (rows, inputs), outputs = x.shape, self.weights.shape[0]
        dtype = torch.bfloat16 if tile.parts == 1 else torch.float32
        parts = torch.empty(tile.parts, rows, outputs, dtype=dtype, device=DEVICE)
        grid = outputs // tile.columns, tile.parts, triton.cdiv(rows, width)
        kernels.multiply.run(
            *(x, self.weights, self._scales, parts, rows, outputs, inputs, inputs // tile.parts),
            *(parts.stride(0), width, tile.columns, tile.inner),
            grid=grid,
            warmup=only_compile,
            num_stages=tile.stages,
        )
        return parts


class Cache:
    """Keys and values of every layer in pages; page 0 takes what nobody reads."""

    def __init__(self, shape: Shape, num_pages: int) -> None:
        size = num_pages, shape.kv_heads, PAGE, shape.head
        self.layers = [
            tuple(torch.randn(size, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
            for _ in range(shape.layers)
        ]


@dataclass(frozen=True)
class Rows:
    """One-token rows: tokens ``[rows]``, page tables ``[rows, pages]`` and positions ``[rows]``, int32.

    Rows of one verification share a page table.
    """

    tokens: Any
    table: Any
    positions: Any

    def __getitem__(self, chosen: Any) -> Rows:
        return Rows(self.tokens[chosen], self.table[chosen], self.positions[chosen])


def attention(queries: Any, cached: Any, rows: Rows, split: int, out: Any, out_scale: float) -> None:
    """Attend from ``[rows, heads, head]`` to the context of each row.

    Args:
        queries: Queries.
        cached: Keys and values of the layer.
        rows: Where each row's context is.
        split: Tokens of a split; 0 lets each row's own length decide.
        out: Result, of the same shape.
        out_scale: What the result is multiplied by.
    """
    (_, heads, head), kv_heads, num_rows = queries.shape, cached[0].shape[1], len(rows.tokens)
    most_tokens = rows.table.shape[1] * PAGE
    num_splits = min(MOST_SPLITS, triton.cdiv(most_tokens, split or 2 * PAGE))
    sums = torch.empty(num_rows, heads, MOST_SPLITS, head, device=DEVICE)
    peaks, totals = torch.empty(2, num_rows, heads, MOST_SPLITS, device=DEVICE)
    kernels.attend[num_rows, kv_heads, num_splits](
        *(queries, *cached, rows.table, rows.positions, sums, peaks, totals, rows.table.shape[1]),
        *(head**-0.5 * _LOG2_E, heads // kv_heads, kv_heads, head, PAGE, split, MOST_SPLITS),
        num_warps=2,
        num_stages=2,
    )
    kernels.merge_splits[num_rows, heads](
        *(sums, peaks, totals, rows.positions, out, out_scale, heads, head, PAGE, split, MOST_SPLITS)
    )


class Decoder:
    """The decoder; its head is bfloat16 as in published FP8 checkpoints."""

    def __init__(self, shape: Shape, form: Format, cache: Cache, max_positions: int) -> None:
        self.shape, self.form, self._cache = shape, form, cache
        self.layers = [
            {name: Linear(*size, form) for name, size in shape.linears().items()} for _ in range(shape.layers)
        ]
        self.head = Linear(shape.vocab, shape.hidden, FORMATS["bf16"])
        self._embedding = torch.randn(shape.vocab, shape.hidden, dtype=torch.bfloat16, device=DEVICE)
        rate = 500_000 ** -(torch.arange(shape.head // 2, device=DEVICE) / (shape.head // 2))
        angle = torch.arange(max_positions, device=DEVICE)[:, None] * rate
        self._turns = torch.cat([angle.cos(), angle.sin()], dim=1)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of weights that a step reads at least."""
        return self.head.num_bytes + sum(each.num_bytes for layer in self.layers for each in layer.values())

    def step(self, rows: Rows, ways: dict[str, Way], split: int, held: int = 0) -> Any:
        """Return the logits ``[rows, vocab]``, after writing keys and values of all rows.

        Args:
            rows: What to compute.
            ways: Name of a product, or ``head`` -> how it is computed.
            split: As in ``attention``.
            held: Rows that products are padded to; what is computed for the others is not looked at.
        """
        shape, count = self.shape, len(rows.tokens)
        inputs, out_scale = self.form.inputs, 1 / self.form.input_scale

        def buffer(width: int, dtype: torch.dtype = inputs) -> Any:
            return torch.empty(max(count, held), width, dtype=dtype, device=DEVICE)

        def norm(parts: Any, dtype: torch.dtype, scale: float) -> Any:
            x, (num_parts, *_) = buffer(shape.hidden, dtype), parts.shape
            kernels.add_and_norm[(count,)](
                *(stream, parts, num_parts, parts.stride(0), x, scale, shape.hidden), num_warps=8
            )
            return x

        stream = self._embedding[rows.tokens].float()
        parts = torch.empty(0, count, shape.hidden, device=DEVICE)
        for layer, cached in zip(self.layers, self._cache.layers, strict=True):
            parts = ways["qkv"](layer["qkv"], norm(parts, inputs, out_scale))
            queries = buffer(shape.heads * shape.head, torch.bfloat16).view(-1, shape.heads, shape.head)
            kernels.rotate_and_cache[count, shape.heads + 2 * shape.kv_heads](
                *(parts, parts.shape[0], parts.stride(0), self._turns, rows.positions, rows.table),
                *(rows.table.shape[1], queries, *cached, shape.heads, shape.kv_heads, shape.head, PAGE),
                num_warps=1,
            )
            attended = buffer(shape.heads * shape.head)
            attention(queries, cached, rows, split, attended, out_scale)
            x = norm(ways["o"](layer["o"], attended), inputs, out_scale)
            parts, x = ways["gate_up"](layer["gate_up"], x), buffer(shape.inner)
            kernels.gate[count, shape.inner // 512](
                *(parts, parts.shape[0], parts.stride(0), x, out_scale, shape.inner, 512)
            )
            parts = ways["down"](layer["down"], x)
        (logits,) = ways["head"](self.head, norm(parts, torch.bfloat16, 1.0))
        return logits[:count]


class Replay:
    """A step as a CUDA graph."""

    def __init__(self, step: Callable[[Rows], Any], rows: Rows) -> None:
        self._rows = Rows(rows.tokens.clone(), rows.table.clone(), rows.positions.clone())
        step(self._rows)  # compiles kernels
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = step(self._rows)

    def __call__(self, rows: Rows) -> Any:
        """Compute other rows of the same number."""
        for held, given in zip(vars(self._rows).values(), vars(rows).values(), strict=True):
            held.copy_(given)
        self.again()
        return self._logits.clone()

    def again(self) -> None:
        """Compute the same rows again."""
        self._graph.replay()
