"""A draft token must be a target token, with the same number and as many logits."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.engine_limits import asked_limits, draft_vocabulary, fast_logits_columns
from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules import Broken, Rule


def _draft_vocabulary(pair: Pair) -> Iterator[Broken]:
    return draft_vocabulary(asked_limits(pair, pair.draft), asked_limits(pair, pair.target))


def _vocab_size(pair: Pair) -> Iterator[Broken]:
    draft, target = pair.draft.config.vocab_size, pair.target.config.vocab_size
    if draft < target:
        yield Broken(
            "pair",
            "the draft's vocabulary is smaller than the target's",
            f"draft {draft}, target {target}",
            "the same vocab_size, so that draft logits fit the target row by row whoever hands them over",
            f"draft.pad_vocab_size_to: {target}, if the tokenizers are the same",
        )


def _padding_goes_somewhere(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        wanted = side.engine.pad_vocab_size_to
        if wanted is not None and wanted < side.source.vocab_size:
            yield Broken(
                side.role,
                "a vocabulary cannot be padded to fewer rows than it has",
                f"pad_vocab_size_to={wanted}",
                f"at least vocab_size={side.source.vocab_size}",
                f"remove {side.role}.pad_vocab_size_to or raise it",
            )
        elif wanted is not None and side.checkpoint == side.engine.checkpoint_directory:
            yield Broken(
                side.role,
                "nothing pads this checkpoint: it is compiled as it is",
                f"pad_vocab_size_to={wanted}, quantization={side.engine.quantization}",
                "a checkpoint that make quantize writes",
                f"{side.role}.checkpoint: the Hugging Face directory, or one that is padded already",
            )


def _fast_logits_columns(pair: Pair) -> Iterator[Broken]:
    return fast_logits_columns(
        asked_limits(pair, pair.draft),
        asked_limits(pair, pair.target),
        fast_logits=pair.recipe.tensorrt_llm.fast_logits,
    )


def _tokenizer(pair: Pair) -> Iterator[Broken]:
    if pair.draft.tokenizer.sha256 != pair.target.tokenizer.sha256:
        yield Broken(
            "pair",
            "draft and target have different tokenizers",
            f"draft {pair.draft.tokenizer.sha256[:16]}, target {pair.target.tokenizer.sha256[:16]}",
            "the same ids for the same text; vocabulary, merges, normalizer and added tokens are compared",
            "choose a draft of the target's family",
        )
    for side in pair.sides:
        if side.tokenizer.num_tokens > side.config.vocab_size:
            yield Broken(
                side.role,
                "the tokenizer has more tokens than the network",
                f"{side.tokenizer.num_tokens} tokens",
                f"vocab_size={side.config.vocab_size}",
                "copy the tokenizer.json of this very model into the checkpoint directory",
            )


def _logits_dtype(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        if side.config.logits_dtype != "float32":
            yield Broken(
                side.role,
                "the checkpoint asks for logits of another type than the engines are built with",
                f"logits_dtype={side.config.logits_dtype}",
                "float32: ties are fewer, and draft logits go over in it",
                "export the checkpoint again with logits_dtype float32",
            )


VOCABULARY_RULES = (
    Rule("draft-vocabulary", "TensorRT-LLM issue #3615", _draft_vocabulary),
    Rule("vocab-size", "TensorRT-LLM issues #3615 and #2789", _vocab_size),
    Rule("vocab-padding", "Draftproof: build/quantize.py pads what it writes", _padding_goes_somewhere),
    Rule(
        "fast-logits-columns",
        "TensorRT-LLM issue #2789, newRequestDraftTokensExternal",
        _fast_logits_columns,
    ),
    Rule("tokenizer", "examples/draft_target_model/README.md: same tokenizer", _tokenizer),
    Rule(
        "logits-dtype",
        "triton_backend docs: logits_datatype equals the engine's, checked in C++",
        _logits_dtype,
    ),
)
