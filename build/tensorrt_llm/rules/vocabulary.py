"""Rules on tokenizers and vocabularies: a draft token must be the same token for the target."""

from __future__ import annotations

from collections.abc import Iterator

from build.checkpoints.tokenizer_file import first_difference
from build.tensorrt_llm.rules.engine_limits import draft_vocabulary, fast_logits_columns, requested_limits
from build.tensorrt_llm.rules.pair import Pair
from build.tensorrt_llm.rules.rule import Rule, Violation


def _draft_vocabulary(pair: Pair) -> Iterator[Violation]:
    return draft_vocabulary(requested_limits(pair, pair.draft), requested_limits(pair, pair.target))


def _vocab_size(pair: Pair) -> Iterator[Violation]:
    draft, target = pair.draft.config.vocab_size, pair.target.config.vocab_size
    if draft < target:
        yield Violation(
            "pair",
            "the draft's vocabulary is smaller than the target's",
            f"draft {draft}, target {target}",
            "must be equal, so that the target can use the draft's logits",
            f"set draft.pad_vocab_size_to: {target}, if the tokenizers are the same",
        )


def _padding(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        wanted = side.engine.pad_vocab_size_to
        if wanted is not None and wanted < side.source.vocab_size:
            yield Violation(
                side.role,
                "a vocabulary cannot be padded to fewer rows than it has",
                f"pad_vocab_size_to={wanted}",
                f"at least vocab_size={side.source.vocab_size}",
                f"remove {side.role}.pad_vocab_size_to or raise it",
            )
        elif wanted is not None and side.checkpoint == side.engine.checkpoint_directory:
            yield Violation(
                side.role,
                "this checkpoint is compiled unchanged, so it cannot be padded",
                f"pad_vocab_size_to={wanted}, quantization={side.engine.quantization}",
                "only make quantize pads a checkpoint",
                f"set {side.role}.checkpoint to the Hugging Face directory, or to a padded checkpoint",
            )


def _fast_logits_columns(pair: Pair) -> Iterator[Violation]:
    return fast_logits_columns(
        requested_limits(pair, pair.draft),
        requested_limits(pair, pair.target),
        fast_logits=pair.recipe.tensorrt_llm.fast_logits,
    )


def _tokenizer(pair: Pair) -> Iterator[Violation]:
    if pair.draft.tokenizer.sha256 != pair.target.tokenizer.sha256:
        yield Violation(
            "pair",
            "draft and target have different tokenizers",
            first_difference(pair.draft.tokenizer, pair.target.tokenizer),
            "must do the same, because TensorRT-LLM verifies the ids of the draft: vocabulary, merges, added "
            "tokens and the ids of test strings are compared",
            "choose a draft from the target's model family, or the embedded runtime, which translates tokens",
        )
    for side in pair.sides:
        if side.tokenizer.num_tokens > side.config.vocab_size:
            yield Violation(
                side.role,
                "the tokenizer has more tokens than the network",
                f"{side.tokenizer.num_tokens} tokens",
                f"vocab_size={side.config.vocab_size}",
                "download this model's own tokenizer.json into the checkpoint directory",
            )


def _logits_dtype(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if side.config.logits_dtype != "float32":
            yield Violation(
                side.role,
                "the checkpoint's logits_dtype differs from the engines'",
                f"logits_dtype={side.config.logits_dtype}",
                "float32, which has fewer ties and is the type of the draft's logits",
                "export the checkpoint again with logits_dtype float32",
            )


VOCABULARY_RULES = (
    Rule("draft-vocabulary", "TensorRT-LLM issue #3615", _draft_vocabulary),
    Rule("vocab-size", "TensorRT-LLM issues #3615 and #2789", _vocab_size),
    Rule("vocab-padding", "Draftproof: only build/quantize.py pads", _padding),
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
