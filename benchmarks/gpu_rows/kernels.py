"""Triton kernels whose result for a row depends on nothing but that row.

A product adds up in an order that its tile decides, and attention in splits that the row's own context
decides. What reads a product adds up its parts, first to last, so that no kernel of its own does it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def multiply(
    x, weights, scales, parts, rows, n, k, part_k, part_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr
):  # fmt: skip
    """Write one tile of ``parts[p] = x[:, part p] @ weights[:, part p].T * scales``.

    The weights are the left operand, whose tile is at least 64 high on Hopper; a tile of rows can be less.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inner = tl.program_id(1) * part_k + tl.arange(0, INNER)
    weights_at = weights + column[:, None] * k + inner[None, :]
    x_at = x + row[None, :] * k + inner[:, None]
    sums = tl.zeros((COLUMNS, ROWS), tl.float32)
    for _ in range(0, part_k, INNER):
        tile = tl.load(weights_at, eviction_policy="evict_first")
        x_tile = tl.load(x_at, mask=row[None, :] < rows, other=0.0)
        sums = tl.dot(tile.to(x_tile.dtype), x_tile, sums)
        weights_at += INNER
        x_at += INNER
    sums *= tl.load(scales + column)[:, None]
    parts_at = parts + tl.program_id(1) * part_stride + row[None, :] * n + column[:, None]
    tl.store(parts_at, sums.to(parts.dtype.element_ty), mask=row[None, :] < rows)


@triton.jit
def _added(parts, num_parts: tl.constexpr, part_stride, at):
    total = tl.load(parts + at).to(tl.float32)
    for part in tl.static_range(1, num_parts):
        total += tl.load(parts + part * part_stride + at).to(tl.float32)
    return total


@triton.jit
def add_and_norm(stream, parts, num_parts: tl.constexpr, part_stride, out, out_scale, SIZE: tl.constexpr):
    """Add a product to the residual stream of one row, and write its RMSNorm."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(stream + at)
    if num_parts > 0:
        x += _added(parts, num_parts, part_stride, at)
        tl.store(stream + at, x)
    x *= tl.rsqrt(tl.sum(x * x) / SIZE + 1e-5) * out_scale
    tl.store(out + at, x.to(out.dtype.element_ty))


@triton.jit
def rotate_and_cache(
    parts, num_parts: tl.constexpr, part_stride, turns, positions, table, max_pages, queries, keys, values,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Turn one head of one row by its position; write a query, or a key or value into its page."""
    row, head = tl.program_id(0), tl.program_id(1)
    half = tl.arange(0, HEAD // 2)
    at = (row * (HEADS + 2 * KV_HEADS) + head) * HEAD + half
    first = _added(parts, num_parts, part_stride, at)
    second = _added(parts, num_parts, part_stride, at + HEAD // 2)
    position = tl.load(positions + row)
    if head < HEADS + KV_HEADS:
        cosine = tl.load(turns + position * HEAD + half)
        sine = tl.load(turns + position * HEAD + HEAD // 2 + half)
        first, second = first * cosine - second * sine, second * cosine + first * sine
    if head < HEADS:
        out = queries + (row * HEADS + head) * HEAD + half
    else:
        page = tl.load(table + row * max_pages + position // PAGE)
        kv_head = (head - HEADS) % KV_HEADS
        cache = keys if head < HEADS + KV_HEADS else values
        out = cache + ((page * KV_HEADS + kv_head) * PAGE + position % PAGE) * HEAD + half
    tl.store(out, first.to(queries.dtype.element_ty))
    tl.store(out + HEAD // 2, second.to(queries.dtype.element_ty))


@triton.jit
def _split_length(length, PAGE: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr):
    return SPLIT if SPLIT > 0 else tl.maximum(2, tl.cdiv(length, MOST_SPLITS * PAGE)) * PAGE


@triton.jit
def attend(
    queries, keys, values, table, positions, sums, peaks, totals, max_pages, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr,
    SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr
):  # fmt: skip
    """Attend from the query heads that share one key head of one row to one split of its context.

    ``SPLIT`` 0 lets the length of the row's own context decide: two pages, or more for ``MOST_SPLITS``.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row) + 1
    split_length = _split_length(length, PAGE, SPLIT, MOST_SPLITS)
    if split * split_length < length:
        member = tl.arange(0, 16)
        element = tl.arange(0, HEAD)
        token = tl.arange(0, PAGE)
        head = (row * KV_HEADS + kv_head) * GROUP + member
        is_member = member < GROUP
        query = tl.load(queries + head[:, None] * HEAD + element[None, :], mask=is_member[:, None], other=0.0)
        peak = tl.full((16,), -1e30, tl.float32)
        total = tl.zeros((16,), tl.float32)
        added = tl.zeros((16, HEAD), tl.float32)
        for first in range(split * split_length, min((split + 1) * split_length, length), PAGE):
            page = tl.load(table + row * max_pages + first // PAGE)
            base = (page * KV_HEADS + kv_head) * PAGE * HEAD
            key = tl.load(keys + base + token[None, :] * HEAD + element[:, None])
            value = tl.load(values + base + token[:, None] * HEAD + element[None, :])
            scores = tl.where(first + token[None, :] < length, tl.dot(query, key) * scale, -1e30)
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.exp2(scores - new_peak[:, None])
            kept = tl.exp2(peak - new_peak)
            total = total * kept + tl.sum(weights, 1)
            added = tl.dot(weights.to(value.dtype), value, added * kept[:, None])
            peak = new_peak
        at = head * MOST_SPLITS + split
        tl.store(peaks + at, peak, mask=is_member)
        tl.store(totals + at, total, mask=is_member)
        tl.store(sums + at[:, None] * HEAD + element[None, :], added, mask=is_member[:, None])


@triton.jit
def merge_splits(
    sums, peaks, totals, positions, out, out_scale, HEADS: tl.constexpr, HEAD: tl.constexpr,
    PAGE: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr
):  # fmt: skip
    """Add up the splits of one head of one row."""
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(positions + row) + 1
    split = tl.arange(0, MOST_SPLITS)
    is_used = split * _split_length(length, PAGE, SPLIT, MOST_SPLITS) < length
    at = (row * HEADS + head) * MOST_SPLITS + split
    element = tl.arange(0, HEAD)
    peak = tl.load(peaks + at, mask=is_used, other=-1e30)
    weights = tl.exp2(peak - tl.max(peak, 0))
    total = tl.sum(weights * tl.load(totals + at, mask=is_used, other=0.0), 0)
    added = tl.load(sums + at[:, None] * HEAD + element[None, :], mask=is_used[:, None], other=0.0)
    result = tl.sum(added * weights[:, None], 0) / total * out_scale
    tl.store(out + (row * HEADS + head) * HEAD + element, result.to(out.dtype.element_ty))


@triton.jit
def gate(parts, num_parts: tl.constexpr, part_stride, out, out_scale, n, BLOCK: tl.constexpr):
    """Write ``silu(gate) * up`` of a block of one row."""
    row = tl.program_id(0)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    opened = _added(parts, num_parts, part_stride, row * 2 * n + element)
    up = _added(parts, num_parts, part_stride, row * 2 * n + n + element)
    result = opened / (1 + tl.exp(-opened)) * up * out_scale
    tl.store(out + row * n + element, result.to(out.dtype.element_ty))
