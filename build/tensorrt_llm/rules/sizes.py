"""Rules on sizes that trtllm-build would change silently, or that a round would exceed."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.rules.engine_limits import longest_request, requested_limits
from build.tensorrt_llm.rules.pair import Pair
from build.tensorrt_llm.rules.rule import Rule, Violation


def _round_fits(pair: Pair) -> Iterator[Violation]:
    serving = pair.recipe.serving
    needed = serving.max_batch_size * (serving.max_draft_len + 1)
    if pair.max_num_tokens < needed:
        yield Violation(
            "target",
            "a step is too small for one round of all requests",
            f"max_num_tokens={pair.max_num_tokens}",
            f"max_batch_size x (max_draft_len + 1) = {needed}; trtllm-build would raise it",
            f"set tensorrt_llm.max_num_tokens: {needed}, or lower max_batch_size or max_draft_len",
        )


def _longest_request(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        yield from longest_request(requested_limits(pair, side), pair.recipe.serving.max_seq_len)


def _not_more_than_all(pair: Pair) -> Iterator[Violation]:
    serving = pair.recipe.serving
    everything = serving.max_batch_size * serving.max_seq_len
    if pair.max_num_tokens > everything:
        yield Violation(
            "pair",
            "a step can never be this large",
            f"max_num_tokens={pair.max_num_tokens}",
            f"max_batch_size x max_seq_len = {everything}; trtllm-build would lower it",
            f"set tensorrt_llm.max_num_tokens: {everything}",
        )


def _block(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        size = side.engine.tensorrt_llm.tokens_per_block
        if size & (size - 1) or size > pair.max_num_tokens:
            yield Violation(
                side.role,
                "tokens_per_block is invalid",
                f"tokens_per_block={size}",
                f"a power of two, at most max_num_tokens={pair.max_num_tokens}",
                f"set {side.role}.tensorrt_llm.tokens_per_block: 32",
            )
    sizes = [side.engine.tensorrt_llm.tokens_per_block for side in pair.sides]
    if sizes[0] != sizes[1]:
        yield Violation(
            "pair",
            "draft and target have different block sizes",
            f"tokens_per_block: draft {sizes[0]}, target {sizes[1]}",
            "must be equal, because both KV caches are planned in whole blocks",
            "set both to the smaller one",
        )


def _positions(pair: Pair) -> Iterator[Violation]:
    serving = pair.recipe.serving
    for side in pair.sides:
        reach = side.config.max_positions - pair.max_draft_len(side)
        needed = serving.max_seq_len + pair.max_draft_len(side)
        if side.config.max_positions < needed:
            yield Violation(
                side.role,
                "the network's context is shorter than serving.max_seq_len",
                f"serving.max_seq_len={serving.max_seq_len}; {needed} with the draft tokens of a round",
                f"max_position_embeddings={side.config.max_positions}; trtllm-build adds max_draft_len",
                f"set serving.max_seq_len: {reach}, or use another checkpoint",
            )


def _prompt(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        length = side.max_input_len
        if length is not None and length >= pair.recipe.serving.max_seq_len:
            yield Violation(
                side.role,
                "a prompt of this length leaves no room for an answer",
                f"max_input_len={length}",
                f"below serving.max_seq_len={pair.recipe.serving.max_seq_len}; trtllm-build would clip it",
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
