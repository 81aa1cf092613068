"""Rules on sizes that trtllm-build would change silently, or that a round would exceed.

Preflight checks the engines that a recipe asks for; rendering a model repository checks the built ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from build.tensorrt_llm.pair import Pair, Side
from build.tensorrt_llm.rules.rule import Violation, rule


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine.

    Attributes:
        role: ``draft`` or ``target``.
        vocab_size: Columns of the logits without padding.
        padded_vocab_size: Columns of the logits.
        max_sequence: Most tokens of prompt and drafts in one request. A prompt is computed in one step, so
            the size of a step also limits it (``TrtGptModel``; from reading the source).
    """

    role: str
    vocab_size: int
    padded_vocab_size: int
    max_sequence: int


def engine_limits(
    role: str, *, vocab_size: int, world_size: int, max_seq_len: int, max_num_tokens: int
) -> EngineLimits:
    """Return the limits of an engine from the numbers in its ``config.json``.

    The padding is that of ``ModelConfig::getVocabSizePadded``, called with ``WorldConfig::getSize()``.
    """
    padded = -(-vocab_size // world_size) * world_size
    return EngineLimits(role, vocab_size, padded, min(max_seq_len - 1, max_num_tokens))


def requested_limits(pair: Pair, side: Side) -> EngineLimits:
    """Return the limits of the engine that a recipe asks for."""
    return engine_limits(
        side.role,
        vocab_size=side.config.vocab_size,
        world_size=side.config.world_size,
        max_seq_len=pair.recipe.serving.max_seq_len + pair.max_draft_len(side),
        max_num_tokens=pair.max_num_tokens,
    )


def longest_request(engine: EngineLimits, max_seq_len: int) -> Iterator[Violation]:
    """Check the longest request: a round sends all tokens so far and the drafts, and adds one token."""
    needed = max_seq_len - 1
    if engine.max_sequence < needed:
        yield Violation(
            engine.role,
            f"the {engine.role} engine cannot process a request of serving.max_seq_len",
            f"min(max_seq_len - 1, max_num_tokens)={engine.max_sequence}",
            f"serving.max_seq_len - 1 = {needed}: each round counts as a full prompt, with reused blocks, "
            "and chunked context is off because it drops draft tokens",
            f"set tensorrt_llm.max_num_tokens to at least {needed}, or lower serving.max_seq_len",
        )


def draft_vocabulary(draft: EngineLimits, target: EngineLimits) -> Iterator[Violation]:
    """Check that the target has every token that the draft can propose."""
    if draft.vocab_size > target.vocab_size:
        yield Violation(
            "pair",
            "the draft's vocabulary is larger than the target's",
            f"draft {draft.vocab_size}, target {target.vocab_size}",
            "at most the target's, so that every draft token is a target token",
            f"set target.pad_vocab_size_to: {draft.vocab_size}, if the tokenizers are the same",
        )


@rule("round-fits", "tensorrt_llm/builder.py build() @008b2b8d: 'New max_num_tokens'")
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


@rule(
    "longest-request",
    "cpp microBatchScheduler.cpp and trtGptModelInflightBatching.cpp (reading); TensorRT-LLM issue #2295",
)
def _longest_request(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        yield from longest_request(requested_limits(pair, side), pair.recipe.serving.max_seq_len)


@rule("tokens-at-most", "tensorrt_llm/_common.py check_max_num_tokens @0fccc5b9")
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


@rule("tokens-per-block", "tensorrt_llm/plugin/plugin.py and _common.py check_max_num_tokens")
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


@rule("positions", "tensorrt_llm/builder.py _init_max_seq_len and build() @008b2b8d")
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


@rule("prompt-length", "tensorrt_llm/builder.py _init_max_seq_len @008b2b8d: 'clipping it'")
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


SIZE_RULES = (_round_fits, _longest_request, _not_more_than_all, _block, _positions, _prompt)
