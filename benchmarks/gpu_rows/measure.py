"""Counts rows whose bits differ, and times products, attention and whole steps computed in several ways."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
import triton

from benchmarks.gpu_rows.decoder import (
    DEVICE,
    MOST_ROWS,
    MOST_SPLITS,
    PAGE,
    Cache,
    Decoder,
    Format,
    Linear,
    Replay,
    Rows,
    Shape,
    Tile,
    Way,
    attention,
)

ROW_COUNTS = (1, 8, 32, 64)
CONTEXTS = {1024: ROW_COUNTS, 16384: (1, 8)}
DRAFTED = 4
OWN_LENGTH = 0  # as a split of attention

WAYS = ("library", "best", "padded", "fixed", "narrow")
"""How rows are computed.

``library``: cuBLAS chooses. ``best``: the fastest for each number of rows. The others do not depend on it.
``padded``: cuBLAS for 64 rows. ``fixed``: one tile of 64 rows. ``narrow``: the same order of additions in a
tile of 16, 32 or 64 rows.
"""

_ROTATED_BYTES = 400e6  # several times the L2
_CALLS = 3  # of each in a graph, so that its launch is a small part


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the 10 % and 90 % quantiles."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    found = {"median": statistics.median(values), "p10": cuts[0], "p90": cuts[-1]}
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def replays_ms(run: Callable[[], Any], count: int) -> list[float]:
    """Return the time of each call by CUDA events, without that of a first one, milliseconds."""
    run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) for first, second in pairwise(marks)]


def call_us(run: Callable[[Any], Any], inputs: Sequence[Any], replays: int = 15) -> dict[str, float]:
    """Return the mean time of a call, in replays of a graph of calls with each input, microseconds."""
    run(inputs[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            for each in inputs:
                run(each)
    return summary([each * 1e3 / (_CALLS * len(inputs)) for each in replays_ms(graph.replay, replays)])


def bandwidth() -> float:
    """Return bytes per second of reading 2 GB."""
    held = torch.randn(2, 2**29, device=DEVICE)
    return float(held[0].numel() * held.element_size() / call_us(torch.amax, held)["median"] * 1e6)


def rows_differing(compute: Callable[[Any], Any], x: Any, dim: int = 0) -> dict[str, int]:
    """Count rows that have other bits than among ``MOST_ROWS``.

    Each row is computed alone, among 8 and 32, and among all in another order.

    Args:
        compute: What is examined.
        x: Its input, indexed by row.
        dim: Dimension of the rows in its output.
    """
    whole, differ, compared = compute(x).movedim(dim, 0), 0, 0
    index = torch.arange(MOST_ROWS, device=DEVICE)
    groups = [group for rows in (1, 8, 32) for group in index.split(rows)]
    for group in (*groups, torch.randperm(MOST_ROWS, device=DEVICE)):
        different = compute(x[group]).movedim(dim, 0) != whole[group]
        differ += int(different.flatten(1).any(dim=1).sum())
        compared += len(group)
    return {"bits": differ, "of": compared}


def _tiles(outputs: int, inputs: int, form: Format) -> Iterator[Tile]:
    """Return the tiles that are tried for a product."""
    size, input_size = (torch.empty(0, dtype=dtype).element_size() for dtype in (form.weights, form.inputs))
    for columns, num_bytes, parts in product((64, 128), (128, 256), (1, 2, 4, 8)):
        inner = num_bytes // size
        is_whole = inputs % (parts * inner) == 0 and inputs // (parts * inner) >= 4
        if is_whole and (parts == 1 or 100 <= outputs // columns * parts <= 1000):
            stages = 96 * 1024 // (columns * num_bytes + MOST_ROWS * inner * input_size)
            yield Tile(columns, inner, parts, max(2, min(6, stages)))


class Product:
    """One shape of product, and the ways to compute it."""

    def __init__(self, outputs: int, inputs: int, form: Format) -> None:
        num_copies = max(1, round(_ROTATED_BYTES / (outputs * inputs * form.weights.itemsize)))
        self.copies = [Linear(outputs, inputs, form) for _ in range(num_copies)]
        self._x = (torch.randn(MOST_ROWS, inputs, device=DEVICE) / form.input_scale).to(form.inputs)
        self._has_library = form.weights != torch.int8
        self._tiles = list(_tiles(outputs, inputs, form))
        self._best: dict[int, Any] = {}
        self._fixed = self._choose()

    def _choose(self) -> Tile:
        """Find the fastest way for each number of rows; return the tile that loses least at any of them."""
        with ThreadPoolExecutor(12) as pool, triton.AsyncCompileMode(pool):
            for tile, width in product(self._tiles, (16, 32, 64)):
                self.copies[0].by_tile(self._x, tile, width, only_compile=True)
        losses: dict[Tile, list[float]] = {tile: [] for tile in self._tiles}
        for rows in ROW_COUNTS:
            pairs = list(product(self._tiles, sorted({max(16, rows), MOST_ROWS})))
            ways: list[Any] = [partial(Linear.by_tile, tile=tile, width=width) for tile, width in pairs]
            ways += [Linear.by_library] if self._has_library else []
            times = [self._time(way, rows, 7)["median"] for way in ways]
            self._best[rows] = ways[times.index(min(times))]
            for (tile, width), time in zip(pairs, times, strict=False):
                losses[tile] += [time / min(times)] if width == MOST_ROWS else []
        return min(losses, key=lambda tile: max(losses[tile]))

    def _time(self, way: Way, rows: int, replays: int = 15) -> dict[str, float]:
        x = self._x[:rows]
        return call_us(lambda linear: way(linear, x), self.copies, replays)

    def way(self, name: str, rows: int) -> Way:
        """Return one of ``WAYS``; padding is the caller's."""
        near = min(count for count in ROW_COUNTS if count >= rows)
        width = max(16, near) if name == "narrow" else MOST_ROWS
        by_tile = partial(Linear.by_tile, tile=self._fixed, width=width)
        ways: dict[str, Way] = {"best": self._best[near], "fixed": by_tile, "narrow": by_tile}
        return ways.get(name, Linear.by_library)

    def measured(self) -> dict[str, Any]:
        """Return times and differing rows of every way but padding, which is cuBLAS at 64 rows."""
        names = [name for name in WAYS if name != "padded" and (name != "library" or self._has_library)]

        def compute(name: str, x: Any) -> Any:
            return self.way(name, len(x))(self.copies[0], x).float().sum(0)

        return {
            "bytes": self.copies[0].num_bytes,
            "tile": asdict(self._fixed),
            "rows_differing": {name: rows_differing(partial(compute, name), self._x) for name in names},
            "us": {
                rows: {name: self._time(self.way(name, rows), rows) for name in names} for rows in ROW_COUNTS
            },
        }


def _tables(context: int, count: int) -> Any:
    """Return page tables of ``count`` sequences, scattered; page 0 stays free."""
    pages = 1 + torch.randperm(context // PAGE * count, device=DEVICE, dtype=torch.int32)
    return pages.view(count, -1)


def measured_attention(shape: Shape, context: int) -> dict[str, Any]:
    """Return times and differing rows of attention of one layer."""
    (cached,) = Cache(replace(shape, layers=1), context // PAGE * MOST_ROWS + 1).layers
    queries = torch.randn(MOST_ROWS, shape.heads, shape.head, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty_like(queries)
    last = torch.full((MOST_ROWS,), context - 1, dtype=torch.int32, device=DEVICE)
    rows = Rows(last, _tables(context, MOST_ROWS), last)
    dense = torch.randn(
        2, MOST_ROWS, shape.kv_heads, context, shape.head, dtype=torch.bfloat16, device=DEVICE
    )

    def by_split(split: int, chosen: Any, rows: Rows = rows) -> Any:
        attention(queries[chosen], cached, rows[chosen], split, out, 1.0)
        return out[: len(queries[chosen])]

    def by_library(chosen: Any) -> Any:
        query, (keys, values) = queries[chosen][:, :, None], dense[:, chosen]
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    splits = [PAGE << power for power in range(9) if context // MOST_SPLITS <= PAGE << power <= context]
    ways: dict[Any, Any] = {split: partial(by_split, split) for split in (OWN_LENGTH, *splits)}
    ways["library"] = by_library
    times, best = {}, {}
    for count in ROW_COUNTS:
        groups = [slice(first, first + count) for first in range(0, MOST_ROWS, count)]
        times[count] = {name: call_us(way, groups) for name, way in ways.items()}
        best[count] = min((times[count][split]["median"], split) for split in splits)[1]
    lengths = torch.randint(context // 2, context, (MOST_ROWS,), device=DEVICE, dtype=torch.int32)
    varied = Rows(lengths, rows.table, lengths)
    examined = {
        "own length": lambda chosen: by_split(OWN_LENGTH, chosen, varied).clone(),
        "best": lambda chosen: by_split(best[len(chosen)], chosen, varied).clone(),
        "library": by_library,
    }
    index = torch.arange(MOST_ROWS, device=DEVICE)
    return {
        "bytes_per_row": 4 * context * shape.kv_heads * shape.head,
        "rows_differing": {name: rows_differing(way, index) for name, way in examined.items()},
        "best": best,
        "us": times,
    }


class Steps:
    """Whole steps of a decoder, computed in several ways."""

    def __init__(self, decoder: Decoder, products: dict[str, Product], splits: dict[int, Any]) -> None:
        self._decoder, self._products, self._splits = decoder, products, splits

    def _replay(self, way: str, rows: Rows) -> Replay:
        count, context = len(rows.tokens), rows.table.shape[1] * PAGE
        ways = {name: each.way(way, count) for name, each in self._products.items()}
        near = min(each for each in ROW_COUNTS if each >= count)
        split = self._splits[context][near] if way in ("library", "best") else OWN_LENGTH
        held = MOST_ROWS if way == "padded" else 0
        return Replay(lambda given: self._decoder.step(given, ways, split, held), rows)

    def _verification(self, rows: Rows, at: int) -> Rows:
        """Return rows that verify random tokens, the last at the position of a sequence."""
        tokens = torch.randint(0, self._decoder.shape.vocab, (1 + DRAFTED,), device=DEVICE, dtype=torch.int32)
        steps = torch.arange(-DRAFTED, 1, device=DEVICE, dtype=torch.int32)
        table = rows.table[at].expand(1 + DRAFTED, -1).contiguous()
        return Rows(tokens, table, rows.positions[at] + steps)

    def rows_differing(self, way: str, rows: Rows) -> dict[str, Any]:
        """Compare the logits of rows alone with those among others, in decoding and in verifications.

        Args:
            way: One of ``WAYS``.
            rows: ``MOST_ROWS`` sequences.
        """
        replays = {count: self._replay(way, rows[:count]) for count in (*ROW_COUNTS, 1 + DRAFTED)}
        found = {name: {"bits": 0, "argmax": 0, "of": 0} for name in ("decoded", "verified")}
        largest = 0.0

        def alone(rows: Rows) -> Any:
            return torch.cat([replays[1](rows[at : at + 1]) for at in range(len(rows.tokens))])

        def compare(name: str, got: Any, expected: Any) -> None:
            nonlocal largest
            found[name]["bits"] += int((got != expected).any(dim=1).sum())
            found[name]["argmax"] += int((got.argmax(1) != expected.argmax(1)).sum())
            found[name]["of"] += len(got)
            largest = max(largest, float((got.float() - expected.float()).abs().max()))

        expected = alone(rows)
        for count in ROW_COUNTS[1:]:
            for group in torch.randperm(MOST_ROWS, device=DEVICE).split(count):
                compare("decoded", replays[count](rows[group]), expected[group])
        for at in range(8):
            drafted = self._verification(rows, at)
            expected = alone(drafted)
            compare("verified", replays[1 + DRAFTED](drafted), expected)
            others = rows[torch.arange(at + 1, at + MOST_ROWS - DRAFTED, device=DEVICE) % MOST_ROWS]
            pairs = zip(vars(drafted).values(), vars(others).values(), strict=True)
            order = torch.randperm(MOST_ROWS, device=DEVICE)
            mixed = Rows(*map(torch.cat, pairs))[order]
            compare("verified", replays[MOST_ROWS](mixed)[order.argsort()][: 1 + DRAFTED], expected)
        return {**found, "largest_difference": largest}

    def _times(self, rows: Rows, rounds: int = 15) -> dict[str, Any]:
        """Return the time of each way, in turn, and its ratios to ``library`` and ``best``."""
        replays = {way: self._replay(way, rows) for way in WAYS}
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, each in replays.items():
                times[way].append(statistics.median(replays_ms(each.again, 5)))
        found = {}
        for way in WAYS:
            ratios = {f"over_{base}": map(float.__truediv__, times[way], times[base]) for base in WAYS[:2]}
            found[way] = {name: summary(list(each)) for name, each in {"ms": times[way], **ratios}.items()}
        return found

    def measured(self, speed: float) -> dict[str, Any]:
        """Return differing rows, and times beside the floor.

        Args:
            speed: Bytes that the GPU reads per second.
        """
        shape, num_bytes = self._decoder.shape, self._decoder.num_bytes
        tokens = torch.randint(0, shape.vocab, (MOST_ROWS,), device=DEVICE, dtype=torch.int32)
        lengths = torch.randint(512, 1024, (MOST_ROWS,), device=DEVICE, dtype=torch.int32)
        varied = Rows(tokens, _tables(1024, MOST_ROWS), lengths)
        found: dict[str, Any] = {"bytes": num_bytes, "steps": []}
        found["rows_differing"] = {way: self.rows_differing(way, varied) for way in WAYS}
        for context, counts in CONTEXTS.items():
            last = torch.full((max(counts),), context - 1, dtype=torch.int32, device=DEVICE)
            rows = Rows(tokens[: max(counts)], _tables(context, max(counts)), last)
            cases = [(f"decode {count}", rows[:count], count) for count in counts]
            for name, some, num_contexts in (*cases, ("verify 4 tokens", self._verification(rows, 0), 1)):
                cached = num_contexts * 4 * context * shape.kv_heads * shape.head * shape.layers
                floor_ms = (num_bytes + cached) / speed * 1e3
                step = {"step": name, "context": context, "floor_ms": floor_ms, "ways": self._times(some)}
                found["steps"].append(step)
        return found
