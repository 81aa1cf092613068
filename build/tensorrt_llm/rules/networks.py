"""Rules on versions, checkpoints, tokenizers, and combinations of weights, KV cache and kernels."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules.rule import Violation, rule
from build.tensorrt_llm.versions import (
    KNOWN_FLAGS,
    has_fixed_tag,
    image_version,
)

_QWEN_TYPES = ("qwen2", "qwen3")
_CONTAINER = "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"


@rule("version", "TensorRT-LLM PRs #15763, #15907, #15918, #16369 (June and July 2026)")
def _version(pair: Pair) -> Iterator[Violation]:
    version = pair.recipe.tensorrt_llm.version
    if version.partition("+")[0] != KNOWN_FLAGS:
        yield Violation(
            "pair",
            f"flags and limits were checked for {KNOWN_FLAGS}, not for version {version}; later versions "
            "have no trtllm-build, which was removed in June and July 2026",
            f"set tensorrt_llm.version: {KNOWN_FLAGS}, or let draftproof engines pin a bundle without it",
        )


@rule("container", "Triton's support matrix, docs/introduction/compatibility.md")
def _container(pair: Pair) -> Iterator[Violation]:
    section = pair.recipe.tensorrt_llm
    if not has_fixed_tag(section.container):
        yield Violation(
            "pair",
            f"the container {section.container} has neither a digest nor a fixed tag, so it may change",
            f"set tensorrt_llm.container: {_CONTAINER}",
        )
    carried = image_version(section.container)
    if carried is not None and carried != section.version:
        yield Violation(
            "pair",
            f"the container {section.container} has TensorRT-LLM {carried}, and engines of version "
            f"{section.version} run only on the version that built them",
            f"set tensorrt_llm.container: {_CONTAINER}",
        )


@rule("checkpoint", "tensorrt_llm/commands/build.py: mapping and quantization come from it")
def _checkpoint(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if side.config.is_hugging_face:
            yield Violation(
                side.role,
                f"trtllm-build does not read a Hugging Face checkpoint: {side.role}.checkpoint="
                f"{side.engine.checkpoint}, quantization={side.engine.quantization}",
                f"set {side.role}.quantization: none, fp8, int8_sq or another that converts it",
            )
            continue
        different = [
            f"{name} {getattr(side.config, name)}, expected {getattr(side.requested, name)}"
            for name in ("quant_algo", "kv_cache_quant_algo", "vocab_size", "tp_size", "pp_size")
            if getattr(side.config, name) != getattr(side.requested, name)
        ]
        if different and side.checkpoint is not None:
            yield Violation(
                side.role,
                f"{side.config.path} decides what is compiled, and does not match the recipe: "
                f"{'; '.join(different)}",
                "run draftproof quantize again, or correct the recipe",
            )


@rule(
    "qwen-type",
    "tensorrt_llm/models/qwen/model.py QWenDecoderLayer and config.py @2b0e765e of its Qwen3 contributor",
)
def _qwen_type(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        config = side.config
        is_exported = side.checkpoint is not None and not config.is_hugging_face
        is_qwen = config.architecture.lower().startswith("qwen")
        if is_exported and is_qwen and config.qwen_type not in _QWEN_TYPES:
            yield Violation(
                side.role,
                f"{config.path} has qwen_type={config.qwen_type!r}, architecture {config.architecture}, and "
                f"{' or '.join(_QWEN_TYPES)} decides whether queries and keys are normalized",
                "run draftproof quantize on the Hugging Face checkpoint, or add qwen_type and seq_length",
            )


VERSION_RULES = (_version, _container, _checkpoint, _qwen_type)


@rule("vocab-size", "TensorRT-LLM issues #3615 and #2789")
def _vocab_size(pair: Pair) -> Iterator[Violation]:
    sizes = {side.role: side.config.vocab_size for side in pair.sides}
    if sizes["draft"] != sizes["target"]:
        smaller, largest = min(sizes, key=sizes.__getitem__), max(sizes.values())
        yield Violation(
            "pair",
            "the vocabularies must be of equal size, so that the target can use the draft's logits: "
            f"draft {sizes['draft']}, target {sizes['target']}",
            f"set {smaller}.pad_vocab_size_to: {largest}, if the tokenizers are the same",
        )


@rule("vocab-padding", "Draftproof: only build/quantize.py pads")
def _padding(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        wanted = side.engine.pad_vocab_size_to
        if wanted is not None and wanted < side.source.vocab_size:
            yield Violation(
                side.role,
                f"pad_vocab_size_to={wanted} is below vocab_size={side.source.vocab_size}",
                f"remove {side.role}.pad_vocab_size_to or raise it",
            )
        elif wanted is not None and side.checkpoint == side.engine.checkpoint_directory():
            yield Violation(
                side.role,
                f"pad_vocab_size_to={wanted}, and with quantization={side.engine.quantization} the "
                "checkpoint is compiled unchanged; only draftproof quantize pads one",
                f"set {side.role}.checkpoint to the Hugging Face directory, or to a padded checkpoint",
            )


@rule("tokenizer", "examples/draft_target_model/README.md: same tokenizer")
def _tokenizer(pair: Pair) -> Iterator[Violation]:
    if pair.draft.tokenizer.sha256 != pair.target.tokenizer.sha256:
        yield Violation(
            "pair",
            "draft and target have different tokenizers, and TensorRT-LLM verifies the ids of the draft: "
            f"{pair.draft.tokenizer.path} and {pair.target.tokenizer.path}",
            "choose a draft from the target's model family, or the embedded runtime, which translates tokens",
        )
    for side in pair.sides:
        if side.tokenizer.num_tokens > side.config.vocab_size:
            yield Violation(
                side.role,
                f"the tokenizer has {side.tokenizer.num_tokens} tokens, and the network "
                f"vocab_size={side.config.vocab_size}",
                "download this model's own tokenizer.json into the checkpoint directory",
            )


@rule("logits-dtype", "triton_backend docs: logits_datatype equals the engine's, checked in C++")
def _logits_dtype(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if side.config.logits_dtype != "float32":
            yield Violation(
                side.role,
                f"logits_dtype={side.config.logits_dtype}, and the draft's logits are float32",
                "export the checkpoint again with logits_dtype float32",
            )


VOCABULARY_RULES = (_vocab_size, _padding, _tokenizer, _logits_dtype)


# Weights with which trtllm-build keeps paged context attention on with an FP8 KV cache.
FP8_KV_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")


@rule("kv-cache-type", "tensorrt_llm/builder.py build() @008b2b8d; consequence (reading)")
def _kv_cache_type(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        weights, cache = side.config.quant_algo, side.config.kv_cache_quant_algo
        if cache == "FP8" and weights not in FP8_KV_WEIGHTS:
            yield Violation(
                side.role,
                f"an engine with an FP8 KV cache and weights in {weights or side.config.dtype} builds with a "
                f"warning but cannot serve: only {', '.join(FP8_KV_WEIGHTS)} keep paged context attention",
                f"set {side.role}.tensorrt_llm.kv_cache_dtype: model, or {side.role}.quantization: fp8",
            )


@rule("reduce-fusion", "tensorrt_llm/builder.py build() @008b2b8d: 'Overriding reduce_fusion'")
def _reduce_fusion(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if not side.engine.tensorrt_llm.reduce_fusion:
            continue
        if side.config.tp_size == 1 or side.config.architecture != "LlamaForCausalLM":
            yield Violation(
                side.role,
                "trtllm-build would ignore reduce_fusion without LlamaForCausalLM and tp_size above 1: "
                f"tp_size={side.config.tp_size}, architecture {side.config.architecture}",
                f"remove {side.role}.tensorrt_llm.reduce_fusion",
            )


PRECISION_RULES = (_kv_cache_type, _reduce_fusion)
