"""Limits that the builder would change without a word, and limits that a round would break."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.engine_limits import asked_limits, longest_request
from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules import Broken, Rule


def _round_fits(pair: Pair) -> Iterator[Broken]:
    serving = pair.recipe.serving
    needed = serving.max_batch_size * (serving.max_draft_len + 1)
    if pair.max_num_tokens < needed:
        yield Broken(
            "target",
            "a step cannot hold a round of every request",
            f"max_num_tokens={pair.max_num_tokens}",
            f"max_batch_size x (max_draft_len + 1) = {needed}; the builder would raise it",
            f"tensorrt_llm.max_num_tokens: {needed}, or a smaller batch or draft",
        )


def _longest_request(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        yield from longest_request(asked_limits(pair, side), pair.recipe.serving.max_seq_len)


def _not_more_than_all(pair: Pair) -> Iterator[Broken]:
    serving = pair.recipe.serving
    everything = serving.max_batch_size * serving.max_seq_len
    if pair.max_num_tokens > everything:
        yield Broken(
            "pair",
            "a step can never be so large",
            f"max_num_tokens={pair.max_num_tokens}",
            f"max_batch_size x max_seq_len = {everything}; the builder would lower it",
            f"tensorrt_llm.max_num_tokens: {everything}",
        )


def _block(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        size = side.engine.tensorrt_llm.tokens_per_block
        if size & (size - 1) or size > pair.max_num_tokens:
            yield Broken(
                side.role,
                "tokens_per_block cannot be used",
                f"tokens_per_block={size}",
                f"a power of two, at most max_num_tokens={pair.max_num_tokens}",
                f"{side.role}.tensorrt_llm.tokens_per_block: 32",
            )
    sizes = [side.engine.tensorrt_llm.tokens_per_block for side in pair.sides]
    if sizes[0] != sizes[1]:
        yield Broken(
            "pair",
            "the memory plan shares whole blocks between both caches",
            f"tokens_per_block: draft {sizes[0]}, target {sizes[1]}",
            "the same in both",
            "give both the smaller one",
        )


def _positions(pair: Pair) -> Iterator[Broken]:
    serving = pair.recipe.serving
    for side in pair.sides:
        reach = side.config.max_positions - pair.max_draft_len(side)
        needed = serving.max_seq_len + pair.max_draft_len(side)
        if side.config.max_positions < needed:
            yield Broken(
                side.role,
                "the network does not reach as far as the server promises",
                f"serving.max_seq_len={serving.max_seq_len}, with a round's draft tokens {needed}",
                f"max_position_embeddings={side.config.max_positions}; the builder adds max_draft_len",
                f"serving.max_seq_len: {reach}, or another checkpoint",
            )


def _prompt(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        length = side.max_input_len
        if length is not None and length >= pair.recipe.serving.max_seq_len:
            yield Broken(
                side.role,
                "a prompt of this length leaves no room for an answer",
                f"max_input_len={length}",
                f"below serving.max_seq_len={pair.recipe.serving.max_seq_len}; the builder would clip it",
                f"remove {side.role}.tensorrt_llm.max_input_len",
            )


SIZE_RULES = (
    Rule("round-fits", "tensorrt_llm/builder.py build() @008b2b8d: 'New max_num_tokens'", _round_fits),
    Rule(
        "longest-request",
        "cpp microBatchScheduler.cpp and trtGptModelInflightBatching.cpp (reading); TensorRT-LLM issue #2295",
        _longest_request,
    ),
    Rule("tokens-at-most", "tensorrt_llm/_common.py check_max_num_tokens @0fccc5b9", _not_more_than_all),
    Rule("tokens-per-block", "tensorrt_llm/plugin/plugin.py and _common.py check_max_num_tokens", _block),
    Rule("positions", "tensorrt_llm/builder.py _init_max_seq_len and build() @008b2b8d", _positions),
    Rule("prompt-length", "tensorrt_llm/builder.py _init_max_seq_len @008b2b8d: 'clipping it'", _prompt),
)
