"""Limits that two engines must meet to serve as a pair.

Preflight checks the engines that a recipe asks for; rendering a model repository checks the built ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from build.tensorrt_llm.rules.pair import Pair, Side
from build.tensorrt_llm.rules.rule import Violation


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


def fast_logits_columns(
    draft: EngineLimits, target: EngineLimits, *, fast_logits: bool
) -> Iterator[Violation]:
    """Check that fast logits have the target's width, because they bypass the code that adapts it."""
    if fast_logits and draft.padded_vocab_size != target.padded_vocab_size:
        yield Violation(
            "pair",
            "fast logits of draft and target differ in width",
            f"draft {draft.padded_vocab_size} ({draft.vocab_size} padded for its ranks), "
            f"target {target.padded_vocab_size} ({target.vocab_size} padded for its ranks)",
            "must be equal with fast_logits; otherwise TensorRT-LLM fails with 'Incompatible buffer sizes'",
            "set pad_vocab_size_to of both roles to a common multiple of both engines' ranks, or remove "
            "fast_logits",
        )
