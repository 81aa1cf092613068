"""What two engines must be to serve as a pair, whether they are asked for or built.

The pre-flight asks it of a recipe, the rendering of a model repository of the engines that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from build.tensorrt_llm.pair import Pair, Side
from build.tensorrt_llm.rules import Broken


@dataclass(frozen=True)
class EngineLimits:
    """What an engine takes and gives.

    Attributes:
        role: ``draft`` or ``target``.
        vocab_size: Columns of the logits that stand for tokens.
        padded_vocab_size: Columns there are.
        max_sequence: Tokens of prompt and drafts that one request can bring. Whole prompts are computed in
            one step, so the step's size bounds it too (``TrtGptModel``; reading).
    """

    role: str
    vocab_size: int
    padded_vocab_size: int
    max_sequence: int


def engine_limits(
    role: str, *, vocab_size: int, world_size: int, max_seq_len: int, max_num_tokens: int
) -> EngineLimits:
    """Limits of an engine from the numbers in its ``config.json``.

    Source of the padding: ``ModelConfig::getVocabSizePadded``, called with ``WorldConfig::getSize()``.
    """
    padded = -(-vocab_size // world_size) * world_size
    return EngineLimits(role, vocab_size, padded, min(max_seq_len - 1, max_num_tokens))


def asked_limits(pair: Pair, side: Side) -> EngineLimits:
    """Limits of the engine that a recipe asks for."""
    return engine_limits(
        side.role,
        vocab_size=side.config.vocab_size,
        world_size=side.config.world_size,
        max_seq_len=pair.recipe.serving.max_seq_len + pair.max_draft_len(side),
        max_num_tokens=pair.max_num_tokens,
    )


def longest_request(engine: EngineLimits, max_seq_len: int) -> Iterator[Broken]:
    """A round sends all tokens so far and its drafts, and leaves room for one token."""
    needed = max_seq_len - 1
    if engine.max_sequence < needed:
        yield Broken(
            engine.role,
            f"the {engine.role} engine cannot take the longest request that the recipe promises",
            f"min(max_seq_len - 1, max_num_tokens)={engine.max_sequence}",
            f"serving.max_seq_len - 1 = {needed}: each round is charged as a full prompt, reused blocks "
            "included, and chunked context is off because it drops draft tokens",
            f"tensorrt_llm.max_num_tokens: at least {needed}, or a smaller serving.max_seq_len; build again",
        )


def draft_vocabulary(draft: EngineLimits, target: EngineLimits) -> Iterator[Broken]:
    """A draft must not propose what the target does not have."""
    if draft.vocab_size > target.vocab_size:
        yield Broken(
            "pair",
            "the draft's vocabulary is larger than the target's",
            f"draft {draft.vocab_size}, target {target.vocab_size}",
            "the draft's not above the target's: a draft token must be a target token",
            f"target.pad_vocab_size_to: {draft.vocab_size}, if the tokenizers are the same",
        )


def fast_logits_columns(draft: EngineLimits, target: EngineLimits, *, fast_logits: bool) -> Iterator[Broken]:
    """Logits that go from GPU to GPU pass all code of ours that could fit them to the target's columns."""
    if fast_logits and draft.padded_vocab_size != target.padded_vocab_size:
        yield Broken(
            "pair",
            "fast logits of the draft have other columns than the target's",
            f"draft {draft.padded_vocab_size} ({draft.vocab_size} padded for its ranks), "
            f"target {target.padded_vocab_size} ({target.vocab_size} padded for its ranks)",
            "the same number with fast_logits, else 'Incompatible buffer sizes'",
            "pad_vocab_size_to a common multiple of both engines' ranks in both roles, or remove fast_logits",
        )
