"""Rules on combinations of weights, KV cache, kernels and GPU."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.rules.pair import Pair
from build.tensorrt_llm.rules.rule import Rule, Violation

# Weights with which trtllm-build keeps paged context attention on with an FP8 KV cache.
FP8_KV_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")
_INTEGER_WEIGHTS = ("W8A16", "W4A16", "W8A8_SQ_PER_CHANNEL", "W4A16_AWQ")


def _kv_cache_type(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        weights, cache = side.config.quant_algo, side.config.kv_cache_quant_algo
        values = f"weights {weights or side.config.dtype}, KV cache {cache}"
        if cache == "INT8":
            yield Violation(
                side.role,
                "an engine with an INT8 KV cache builds with a warning but cannot serve",
                values,
                "trtllm-build switches off paged context attention, which block reuse needs, and a target "
                "without block reuse does not start",
                f"set {side.role}.tensorrt_llm.kv_cache_dtype: model, or fp8 with FP8 weights",
            )
        elif cache == "FP8" and weights not in FP8_KV_WEIGHTS:
            yield Violation(
                side.role,
                "an engine with an FP8 KV cache and these weights builds with a warning but cannot serve",
                values,
                f"weights must be one of {', '.join(FP8_KV_WEIGHTS)}; others switch off paged context "
                "attention",
                f"set {side.role}.tensorrt_llm.kv_cache_dtype: model, or {side.role}.quantization: fp8",
            )


def _fp8_hardware(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        used = [name for name in (side.config.quant_algo, side.config.kv_cache_quant_algo) if name]
        if any(name in ("FP8", "W4A8_AWQ") for name in used) and pair.gpu.sm < 89:
            yield Violation(
                side.role,
                "this GPU does not support FP8",
                f"{', '.join(used)} on SM {pair.gpu.sm}",
                "SM 89 (Ada) or newer",
                f"set {side.role}.quantization: int8_sq, or use another GPU",
            )


def _integer_weights_hardware(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if side.config.quant_algo in _INTEGER_WEIGHTS and 100 <= pair.gpu.sm < 120:
            yield Violation(
                side.role,
                "trtllm-build does not support integer weights on this GPU",
                f"{side.config.quant_algo} on SM {pair.gpu.sm}",
                "below SM 100, or SM 120 and above",
                f"set {side.role}.quantization: fp8",
            )


def _fp8_kernels(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        section = side.engine.tensorrt_llm
        kernels = {"low_latency_gemm": section.low_latency_gemm, "gemm_swiglu": section.gemm_swiglu}
        for key, requested in kernels.items():
            if requested and side.config.quant_algo != "FP8":
                yield Violation(
                    side.role,
                    f"{key} needs FP8 weights",
                    f"{key}: true, weights {side.config.quant_algo or side.config.dtype}",
                    "quant_algo FP8",
                    f"remove {side.role}.tensorrt_llm.{key}, or set {side.role}.quantization: fp8",
                )
            if requested and pair.gpu.sm >= 100:
                yield Violation(
                    side.role,
                    f"{key} is not available on this GPU",
                    f"{key}: true on SM {pair.gpu.sm}",
                    "below SM 100",
                    f"remove {side.role}.tensorrt_llm.{key}",
                )
        if section.gemm_swiglu and pair.gpu.sm < 90:
            yield Violation(
                side.role,
                "gemm_swiglu needs a Hopper GPU",
                f"gemm_swiglu: true on SM {pair.gpu.sm}",
                "SM 90",
                f"remove {side.role}.tensorrt_llm.gemm_swiglu",
            )


def _reduce_fusion(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if not side.engine.tensorrt_llm.reduce_fusion:
            continue
        if side.config.tp_size == 1 or side.config.architecture != "LlamaForCausalLM":
            yield Violation(
                side.role,
                "trtllm-build would ignore reduce_fusion",
                f"tp_size={side.config.tp_size}, architecture {side.config.architecture}",
                "tp_size above 1 and LlamaForCausalLM",
                f"remove {side.role}.tensorrt_llm.reduce_fusion",
            )


PRECISION_RULES = (
    Rule("kv-cache-type", "tensorrt_llm/builder.py build() @008b2b8d; consequence (reading)", _kv_cache_type),
    Rule("fp8-hardware", "tensorrt_llm/builder.py build() @008b2b8d: get_sm_version() < 89", _fp8_hardware),
    Rule(
        "integer-weights-hardware",
        "tensorrt_llm/builder.py build() @008b2b8d: RuntimeError on 100 <= SM < 120",
        _integer_weights_hardware,
    ),
    Rule("fp8-kernels", "tensorrt_llm/plugin/plugin.py PluginConfig @c20322ff", _fp8_kernels),
    Rule(
        "reduce-fusion",
        "tensorrt_llm/builder.py build() @008b2b8d: 'Overriding reduce_fusion'",
        _reduce_fusion,
    ),
)
