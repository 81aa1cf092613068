"""Which kinds of weights, KV cache and kernels go together, on which GPU."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules import Broken, Rule

# Weights with which the builder keeps paged context attention on beside an FP8 KV cache.
FP8_KV_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")
_INTEGER_WEIGHTS = ("W8A16", "W4A16", "W8A8_SQ_PER_CHANNEL", "W4A16_AWQ")


def _kv_cache_type(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        weights, cache = side.config.quant_algo, side.config.kv_cache_quant_algo
        values = f"weights {weights or side.config.dtype}, KV cache {cache}"
        if cache == "INT8":
            yield Broken(
                side.role,
                "an INT8 KV cache builds with a warning and cannot serve",
                values,
                "the builder switches paged context attention off, without it there is no block reuse, and "
                "a target without block reuse does not start",
                f"{side.role}.tensorrt_llm.kv_cache_dtype: model, or fp8 with FP8 weights",
            )
        elif cache == "FP8" and weights not in FP8_KV_WEIGHTS:
            yield Broken(
                side.role,
                "an FP8 KV cache beside these weights builds with a warning and cannot serve",
                values,
                f"FP8 KV cache only with weights {', '.join(FP8_KV_WEIGHTS)}; else the builder switches "
                "paged context attention off",
                f"{side.role}.tensorrt_llm.kv_cache_dtype: model, or {side.role}.quantization: fp8",
            )


def _fp8_hardware(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        used = [name for name in (side.config.quant_algo, side.config.kv_cache_quant_algo) if name]
        if any(name in ("FP8", "W4A8_AWQ") for name in used) and pair.gpu.sm < 89:
            yield Broken(
                side.role,
                "this GPU computes no FP8",
                f"{', '.join(used)} on SM {pair.gpu.sm}",
                "SM 89 (Ada) or newer",
                f"{side.role}.quantization: int8_sq, or another GPU",
            )


def _integer_weights_hardware(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        if side.config.quant_algo in _INTEGER_WEIGHTS and 100 <= pair.gpu.sm < 120:
            yield Broken(
                side.role,
                "the builder refuses integer weights on this GPU",
                f"{side.config.quant_algo} on SM {pair.gpu.sm}",
                "below SM 100, or SM 120 and above",
                f"{side.role}.quantization: fp8",
            )


def _fp8_kernels(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        section = side.engine.tensorrt_llm
        kernels = {"low_latency_gemm": section.low_latency_gemm, "gemm_swiglu": section.gemm_swiglu}
        for key, asked in kernels.items():
            if asked and side.config.quant_algo != "FP8":
                yield Broken(
                    side.role,
                    f"{key} is a kernel for FP8 weights",
                    f"{key}: true, weights {side.config.quant_algo or side.config.dtype}",
                    "quant_algo FP8",
                    f"remove {side.role}.tensorrt_llm.{key}, or {side.role}.quantization: fp8",
                )
            if asked and pair.gpu.sm >= 100:
                yield Broken(
                    side.role,
                    f"{key} does not exist for this GPU",
                    f"{key}: true on SM {pair.gpu.sm}",
                    "below SM 100",
                    f"remove {side.role}.tensorrt_llm.{key}",
                )
        if section.gemm_swiglu and pair.gpu.sm < 90:
            yield Broken(
                side.role,
                "gemm_swiglu is a kernel for Hopper",
                f"gemm_swiglu: true on SM {pair.gpu.sm}",
                "SM 90",
                f"remove {side.role}.tensorrt_llm.gemm_swiglu",
            )


def _reduce_fusion(pair: Pair) -> Iterator[Broken]:
    for side in pair.sides:
        if not side.engine.tensorrt_llm.reduce_fusion:
            continue
        if side.config.tp_size == 1 or side.config.architecture != "LlamaForCausalLM":
            yield Broken(
                side.role,
                "reduce_fusion would be dropped without a word",
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
