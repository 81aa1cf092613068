"""Rules on the versions of TensorRT-LLM and its container, and on the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.rules.pair import Pair
from build.tensorrt_llm.rules.rule import Rule, Violation
from build.tensorrt_llm.versions import (
    KNOWN_FLAGS,
    has_fixed_tag,
    has_known_flags,
    image_version,
    without_builder,
)

_QWEN_TYPES = ("qwen2", "qwen3")
_CONTAINER = "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"


def _version(pair: Pair) -> Iterator[Violation]:
    version = pair.recipe.tensorrt_llm.version
    if without_builder(version):
        yield Violation(
            "pair",
            "this version of TensorRT-LLM may have no trtllm-build",
            f"version {version}",
            "trtllm-build was removed in June and July 2026, between release candidates of 1.3",
            f"set tensorrt_llm.version: {KNOWN_FLAGS}, or use the LLM API (make llm-api)",
        )
    elif not has_known_flags(version):
        yield Violation(
            "pair",
            "flags and limits were not checked for this version of TensorRT-LLM",
            f"version {version}",
            f"{KNOWN_FLAGS}",
            f"set tensorrt_llm.version: {KNOWN_FLAGS}",
        )


def _container(pair: Pair) -> Iterator[Violation]:
    section = pair.recipe.tensorrt_llm
    if not has_fixed_tag(section.container):
        yield Violation(
            "pair",
            "the container has no fixed tag",
            section.container,
            "needs a digest or a tag other than latest, because the image must not change",
            f"set tensorrt_llm.container: {_CONTAINER}",
        )
    carried = image_version(section.container)
    if carried is not None and carried != section.version:
        yield Violation(
            "pair",
            "the container has another version of TensorRT-LLM",
            f"{section.container}: {carried}",
            f"version {section.version}, because engines run only on the version that built them",
            f"set tensorrt_llm.container: {_CONTAINER}",
        )


def _checkpoint(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if side.config.is_hugging_face:
            yield Violation(
                side.role,
                "trtllm-build does not read a Hugging Face checkpoint",
                f"{side.role}.checkpoint={side.engine.checkpoint}, quantization={side.engine.quantization}",
                "a TensorRT-LLM checkpoint, which make quantize writes",
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
                "the checkpoint does not match the recipe",
                "; ".join(different),
                f"{side.config.path} must match the recipe, because it decides what is compiled",
                "run make quantize again, or correct the recipe",
            )


def _qwen_type(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        config = side.config
        is_exported = side.checkpoint is not None and not config.is_hugging_face
        is_qwen = config.architecture.lower().startswith("qwen")
        if is_exported and is_qwen and config.qwen_type not in _QWEN_TYPES:
            yield Violation(
                side.role,
                "trtllm-build cannot tell which generation of Qwen this is",
                f"qwen_type={config.qwen_type!r}, architecture {config.architecture}",
                f"{' or '.join(_QWEN_TYPES)} in {config.path}, which decides whether queries and keys are "
                "normalized; ModelOpt does not write it",
                "run make quantize on the Hugging Face checkpoint, or add qwen_type and seq_length",
            )


VERSION_RULES = (
    Rule("version", "TensorRT-LLM PRs #15763, #15907, #15918, #16369 (June and July 2026)", _version),
    Rule("container", "Triton's support matrix, docs/introduction/compatibility.md", _container),
    Rule("checkpoint", "tensorrt_llm/commands/build.py: mapping and quantization come from it", _checkpoint),
    Rule(
        "qwen-type",
        "tensorrt_llm/models/qwen/model.py QWenDecoderLayer and config.py @2b0e765e of its Qwen3 contributor",
        _qwen_type,
    ),
)
