"""Compute the plugins of TensorRT-LLM that decoders use, from what upstream's callers say of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Values = list[torch.Tensor]
_FLOAT, _HALF, _INT8, _INT32, _FP8, _BF16 = 0, 1, 2, 3, 6, 7  # numbers of DataType
_LARGEST_FP8 = 448.0


@dataclass(frozen=True)
class Plugin:
    """A plugin with its parameters; ``plugin_type`` is its name."""

    plugin_type: str
    fields: Mapping[str, Any]
    plugin_namespace: str = "tensorrt_llm"
    plugin_version: str = "1"
    num_outputs: int = 1  # of attention with a paged cache

    def prepared(self, dtypes: Sequence[int]) -> tuple[list[Any], Callable[[Values], Any]]:
        """Return the types of its outputs, and what computes them."""
        found, rule = RULES[self.plugin_type](self.fields, dtypes)
        return [type(dtypes[0])(each) for each in found], rule


def rounded(values: torch.Tensor, dtype: int) -> torch.Tensor:
    """Round to INT8 or FP8, saturating."""
    if dtype == _FP8:
        return values.clamp(-_LARGEST_FP8, _LARGEST_FP8).to(torch.float8_e4m3fn).float()
    return values.round().clamp(-128, 127)


def _attention(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    heads, groups, size = fields["num_heads"], fields["num_kv_heads"], fields["head_size"]
    table_size = fields["rotary_embedding_max_positions"] * fields["rotary_embedding_dim"]
    is_fp8 = fields["use_fp8_context_fmha"] == 1

    def compute(values: Values) -> torch.Tensor:
        qkv = values[0]
        tables = [each for each in values[1:] if each.numel() == table_size and each.is_floating_point()]
        assert len(tables) == 1 and fields["rotary_embedding_dim"] == size
        table = tables[0].reshape(-1, size // 2, 2)[: len(qkv)]
        cos, sin = (torch.cat([table[..., part]] * 2, dim=-1)[:, None] for part in (0, 1))
        query, key, value = (
            part.reshape(len(qkv), -1, size)
            for part in qkv.split([heads * size, groups * size, groups * size], dim=-1)
        )

        def turned(rows: torch.Tensor) -> torch.Tensor:
            first, second = rows.chunk(2, dim=-1)
            return rows * cos + torch.cat([-second, first], dim=-1) * sin

        query, key = turned(query), turned(key)
        key, value = (part.repeat_interleave(heads // groups, dim=1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / (size**0.5 * fields["q_scaling"])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        found = torch.einsum("hqk,khd->qhd", weights, value).reshape(len(qkv), heads * size)
        if not is_fp8:
            return found
        scales = [each for each in values[8:] if each.shape == (1,) and each.is_floating_point()]
        return rounded(found * scales[-1], _FP8)

    return [_FP8 if is_fp8 else dtypes[0]], compute


def _all_reduce(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    # One rank is computed: the others' sums are missing, so only shapes and types are right.
    is_fused = fields["fusion_op"] != 0
    return [dtypes[0]] * (2 if is_fused else 1), lambda values: [values[0]] * (2 if is_fused else 1)


def _all_gather(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    count = len(fields["group"])
    return [dtypes[0]], lambda values: torch.cat([values[0]] * count)


def _gemm(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    def compute(values: Values) -> torch.Tensor:
        left = values[0].transpose(-1, -2) if fields["transa"] else values[0]
        right = values[1].transpose(-1, -2) if fields["transb"] else values[1]
        scale = fields.get("alpha", 1.0) if len(values) < 3 else 1.0
        return left @ right * scale

    return [fields["type_id"]], compute


def _low_latency_gemm(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    return [fields["type_id"]], lambda values: values[0] @ values[1].transpose(-1, -2) * fields["alpha"]


def _gemm_swiglu(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    def compute(values: Values) -> torch.Tensor:
        first, second = (values[0] @ values[1]).chunk(2, dim=-1)
        up, gate = first * fields["scale_d0"], second * fields["scale_d1"]
        found = up * torch.nn.functional.silu(gate) * fields["scale_output"]
        return rounded(found, fields["type_id"]) if fields["type_id"] == _FP8 else found

    return [fields["type_id"]], compute


def _smooth_quant_gemm(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    def compute(values: Values) -> torch.Tensor:
        inputs, weights, of_input, of_weights = values
        return inputs.float() @ weights.float().T * of_input * of_weights.reshape(1, -1)

    return [fields["type_id"]], compute


def _quantize_tensor(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    return [_INT8], lambda values: rounded(values[0] / values[1], _INT8)


def _per_token(values: torch.Tensor) -> Values:
    scale = values.abs().amax(dim=-1, keepdim=True).clamp_min(1e-9) / 127
    return [rounded(values / scale, _INT8), scale]


def _quantize_per_token(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    return [_INT8, _FLOAT], lambda values: _per_token(values[0])


def _rms_norm_quantization(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    per_token = fields["dyn_act_scaling"] == 1

    def compute(values: Values) -> Any:
        hidden, gain, bias, scale = values[:4]
        normal = hidden * (hidden.square().mean(-1, keepdim=True) + fields["eps"]).rsqrt() * gain + bias
        return _per_token(normal) if per_token else rounded(normal * scale, _INT8)

    return [_INT8, _FLOAT] if per_token else [_INT8], compute


def _weight_only(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    # Weights [in, out], as ``preprocess_weights_for_mixed_gemm`` of the stand-in leaves them.
    return [fields["type_id"]], lambda values: values[0] @ values[1].float() * values[2].reshape(1, -1)


def _weight_only_groups(fields: Mapping[str, Any], dtypes: Sequence[int]) -> Any:
    # Packed integers are not taken apart here, so only shapes and types are right.
    def empty(values: Values) -> torch.Tensor:
        groups = values[0].shape[-1] // fields["group_size"]
        scales = next(each for each in values[1:] if each.dim() == 2 and len(each) == groups)
        return values[0].new_zeros(*values[0].shape[:-1], scales.shape[-1])

    return [fields["type_id"]], empty


RULES: dict[str, Callable[[Mapping[str, Any], Sequence[int]], Any]] = {
    "GPTAttention": _attention,
    "AllReduce": _all_reduce,
    "AllGather": _all_gather,
    "Gemm": _gemm,
    "GemmSwiglu": _gemm_swiglu,
    "LowLatencyGemm": _low_latency_gemm,
    "LowLatencyGemmSwiglu": _gemm_swiglu,
    "SmoothQuantGemm": _smooth_quant_gemm,
    "QuantizeTensor": _quantize_tensor,
    "QuantizePerToken": _quantize_per_token,
    "RmsnormQuantization": _rms_norm_quantization,
    "WeightOnlyQuantMatmul": _weight_only,
    "WeightOnlyGroupwiseQuantMatmul": _weight_only_groups,
}
