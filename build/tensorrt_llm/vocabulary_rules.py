"""A draft token must be a target token, with the same number and as many logits."""

from __future__ import annotations

from collections.abc import Iterator

from build.memory_plan import padded_vocab_size
from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules import Broken, Rule


def _vocab_size(pair: Pair) -> Iterator[Broken]:
    draft, target = pair.draft.config.vocab_size, pair.target.config.vocab_size
    if draft != target:
        smaller = "draft" if draft < target else "target"
        yield Broken(
            "pair",
            "draft and target have vocabularies of different size",
            f"draft {draft}, target {target}",
            "the same vocab_size: draft logits are handed over row by row",
            f"{smaller}.pad_vocab_size_to: {max(draft, target)}, if the tokenizers are the same",
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


def _padded_logits(pair: Pair) -> Iterator[Broken]:
    draft, target = padded_vocab_size(pair.draft.config), padded_vocab_size(pair.target.config)
    if pair.draft.config.vocab_size == pair.target.config.vocab_size and draft != target:
        yield Broken(
            "pair",
            "splitting the output head pads the two vocabularies differently",
            f"draft {draft} at tp_size={pair.draft.config.tp_size}, "
            f"target {target} at tp_size={pair.target.config.tp_size}",
            "the same number of logits, else 'Incompatible buffer sizes'",
            "choose tp_size that divides vocab_size, or pad_vocab_size_to a multiple of both",
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
    Rule("vocab-size", "TensorRT-LLM issues #3615 and #2789", _vocab_size),
    Rule("vocab-padding", "Draftproof: build/quantize.py pads what it writes", _padding_goes_somewhere),
    Rule("padded-logits", "TensorRT-LLM issue #2789, newRequestDraftTokensExternal", _padded_logits),
    Rule("tokenizer", "examples/draft_target_model/README.md: same tokenizer", _tokenizer),
    Rule(
        "logits-dtype",
        "triton_backend docs: logits_datatype equals the engine's, checked in C++",
        _logits_dtype,
    ),
)
