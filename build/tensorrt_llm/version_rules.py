"""Versions: of TensorRT-LLM, of the container that carries it, of the checkpoint against the recipe."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules import Broken, Rule
from build.tensorrt_llm.versions import (
    KNOWN_FLAGS,
    has_fixed_tag,
    has_known_flags,
    image_version,
    without_builder,
)

_CONTAINER = "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"


def _version(pair: Pair) -> Iterator[Broken]:
    version = pair.recipe.tensorrt_llm.version
    if without_builder(version):
        yield Broken(
            "pair",
            "this TensorRT-LLM may have no trtllm-build",
            f"version {version}",
            "removed upstream in June and July 2026, between release candidates of 1.3",
            f"tensorrt_llm.version: {KNOWN_FLAGS}, or make llm-api for the LLM API",
        )
    elif not has_known_flags(version):
        yield Broken(
            "pair",
            "flags and limits were checked for another TensorRT-LLM",
            f"version {version}",
            f"{KNOWN_FLAGS}",
            f"tensorrt_llm.version: {KNOWN_FLAGS}",
        )


def _container(pair: Pair) -> Iterator[Broken]:
    section = pair.recipe.tensorrt_llm
    if not has_fixed_tag(section.container):
        yield Broken(
            "pair",
            "the container has no fixed tag",
            section.container,
            "a tag other than latest, or a digest: what is served must not change by itself",
            f"tensorrt_llm.container: {_CONTAINER}",
        )
    carried = image_version(section.container)
    if carried is not None and carried != section.version:
        yield Broken(
            "pair",
            "the container carries another TensorRT-LLM",
            f"{section.container}: {carried}",
            f"version {section.version}; engines of one version run under no other",
            f"tensorrt_llm.container: {_CONTAINER}",
        )


def _checkpoint(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        if side.config.is_hugging_face:
            yield Broken(
                side.role,
                "trtllm-build does not read a Hugging Face checkpoint",
                f"{side.role}.checkpoint={side.engine.checkpoint}, quantization={side.engine.quantization}",
                "a TensorRT-LLM checkpoint, which make quantize writes",
                f"{side.role}.quantization: none, fp8, int8_sq or another that makes one",
            )
            continue
        different = [
            f"{name} {getattr(side.config, name)}, asked for {getattr(side.asked, name)}"
            for name in ("quant_algo", "kv_cache_quant_algo", "vocab_size", "tp_size", "pp_size")
            if getattr(side.config, name) != getattr(side.asked, name)
        ]
        if different and side.checkpoint is not None:
            yield Broken(
                side.role,
                "the checkpoint is not what the recipe asks for",
                "; ".join(different),
                f"{side.config.path} decides what is compiled",
                "run make quantize again, or correct the recipe",
            )


VERSION_RULES = (
    Rule("version", "TensorRT-LLM PRs #15763, #15907, #15918, #16369 (June and July 2026)", _version),
    Rule(
        "container", "tensorrtllm_backend Dockerfiles r26.04 to r26.07, Triton's support matrix", _container
    ),
    Rule("checkpoint", "tensorrt_llm/commands/build.py: mapping and quantization come from it", _checkpoint),
)
