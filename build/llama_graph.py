"""Llama as an OpenVINO graph over a paged KV cache.

The graph is written op by op rather than converted from torch: the CPU plugin fuses RMSNorm, rotary
embedding and compressed projections only where it sees the patterns below, and a test counts the
fusions in the executed graph. Attention is ``PagedAttentionExtension`` itself, the operation that
OpenVINO's continuous batching uses; its class is private to the Python package and its 28 inputs
belong to one version, so openvino is pinned.

A batch is ragged: the tokens of all sequences lie one after another, T in all, and the hidden state
has the shape [T, 1, hidden]. Operations refer to opset15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import op as ov_op
from openvino import opset15 as ops

from build.checkpoint_config import CheckpointConfig, RotaryScaling
from build.linear import InputQuantization, Linear
from build.network import Layer, Network
from build.tensor_file import AnyArray, Float32Array, Tensor

_ELEMENT_TYPES = {
    "BF16": ov.Type.bf16,
    "F16": ov.Type.f16,
    "F32": ov.Type.f32,
    "I8": ov.Type.i8,
    "F8_E4M3": ov.Type.f8e4m3,
}


def rotary_frequencies(head_size: int, base: float, scaling: RotaryScaling | None) -> Float32Array:
    """Angle per position of each pair of coordinates, float32 [head_size / 2].

    Llama 3's scaling leaves short wavelengths alone, stretches long ones by ``factor`` and blends in
    between (as ``transformers`` does in ``_compute_llama3_parameters``).
    """
    frequencies = 1.0 / base ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        wavelengths = 2 * np.pi / frequencies
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        share = (scaling.original_max_position_embeddings / wavelengths - low) / (high - low)
        share = np.clip(share, 0.0, 1.0)
        frequencies = (1 - share) * frequencies / scaling.factor + share * frequencies
    return frequencies.astype(np.float32)


def _constant(tensor: Tensor) -> Any:
    """A constant with the bits of ``tensor``, converted to f32 where it is stored otherwise."""
    data = np.ascontiguousarray(tensor.data)
    raw = ov.Tensor(data, ov.Shape(list(tensor.shape)), _ELEMENT_TYPES[tensor.dtype])
    constant = ov_op.Constant(raw, False)  # False: copy, so that no array must outlive the graph
    return constant if tensor.dtype == "F32" else ops.convert(constant, "f32")


def _floats(values: Any) -> Any:
    return ops.constant(np.asarray(values, dtype=np.float32))


def _integers(values: Any) -> Any:
    return ops.constant(np.asarray(values, dtype=np.int64))


def _int4_constant(values: AnyArray, shape: tuple[int, ...]) -> Any:
    """INT4 as OpenVINO packs it: two inputs of one output in a byte, the even one in the low half."""
    pairs = values.reshape(-1, 2).astype(np.uint8)
    packed = np.ascontiguousarray((pairs[:, 0] & 15) | (pairs[:, 1] << 4))
    raw = ov.Tensor(packed, ov.Shape(list(shape)), ov.Type.i4)
    return ops.convert(ov_op.Constant(raw, False), "f32")


def _weight(linear: Linear) -> Any:
    """[out, in] in the form in which the plugin keeps it compressed."""
    if linear.scale is None:
        return _constant(linear.weight)
    if not linear.is_grouped:
        return ops.multiply(_constant(linear.weight), _floats(linear.scale))
    out, columns = linear.weight.shape
    groups = linear.scale.shape[1]
    weight = _int4_constant(linear.weight.data, (out, groups, columns // groups))
    weight = ops.multiply(weight, _floats(linear.scale[:, :, None]))
    return ops.reshape(weight, _integers([out, columns]), False)


def _rounded(x: Any, quantization: InputQuantization) -> Any:
    """X on the grid that a GPU would round it to; FakeConvert rounds through float16 on its way to E4M3."""
    scale = quantization.scale
    if quantization.dtype == "I8":
        low, high = _floats(-128 * scale), _floats(127 * scale)
        return ops.fake_quantize(x, low, high, low, high, 256)
    return ops.fake_convert(x, _floats([1 / scale]), destination_type="f8e4m3")


def _linear(x: Any, linear: Linear) -> Any:
    if linear.prequant is not None:
        x = ops.multiply(x, _floats(linear.prequant.reshape(1, 1, -1)))
    if linear.input_quantization is not None:
        x = _rounded(x, linear.input_quantization)
    y = ops.matmul(x, _weight(linear), False, True)
    return y if linear.bias is None else ops.add(y, _floats(linear.bias.reshape(1, 1, -1)))


def _rms_norm(x: Any, gain: Float32Array, epsilon: float) -> Any:
    mean_square = ops.reduce_mean(ops.power(x, _floats(2.0)), _integers([-1]), keep_dims=True)
    inverse = ops.divide(_floats(1.0), ops.sqrt(ops.add(mean_square, _floats(epsilon))))
    return ops.multiply(ops.multiply(x, inverse), _floats(gain.reshape(1, 1, -1)))


def _heads(x: Any, num_heads: int, head_size: int) -> Any:
    """[T, 1, heads * size] -> [T, heads, 1, size]."""
    split = ops.reshape(x, _integers([0, 0, num_heads, head_size]), True)
    return ops.transpose(split, _integers([0, 2, 1, 3]))


def _rotate(x: Any, cos: Any, sin: Any, head_size: int) -> Any:
    """Rotary embedding of [T, heads, 1, size]; the plugin would not fuse Split in place of the Slices."""
    half = head_size // 2
    one, axis = _integers([1]), _integers([3])
    low = ops.slice(x, _integers([0]), _integers([half]), one, axis)
    high = ops.slice(x, _integers([half]), _integers([head_size]), one, axis)
    turned = ops.concat([ops.multiply(high, _floats(-1.0)), low], -1)
    return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))


def _flat(x: Any, width: int) -> Any:
    """[T, heads, 1, size] -> [T, heads * size], which is what paged attention takes."""
    return ops.reshape(ops.transpose(x, _integers([0, 2, 1, 3])), _integers([-1, width]), False)


def _parameter(name: str, shape: list[int], dtype: Any) -> Any:
    parameter = ops.parameter(ov.PartialShape(shape), dtype, name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


class LlamaGraph:
    """Builds one graph; use ``build_graph``."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.config: CheckpointConfig = network.config
        integer, long = ov.Type.i32, ov.Type.i64
        self.inputs = {
            "input_ids": _parameter("input_ids", [-1], long),
            "position_ids": _parameter("position_ids", [-1], long),
            "past_lens": _parameter("past_lens", [-1], integer),
            "subsequence_begins": _parameter("subsequence_begins", [-1], integer),
            "block_indices": _parameter("block_indices", [-1], integer),
            "block_indices_begins": _parameter("block_indices_begins", [-1], integer),
            "max_context_len": _parameter("max_context_len", [], integer),
            "logits_rows": _parameter("logits_rows", [-1], integer),
        }
        self.cos, self.sin = self._rotary_tables()

    def _rotary_tables(self) -> tuple[Any, Any]:
        config = self.config
        frequencies = rotary_frequencies(config.head_size, config.rotary_base, config.rotary_scaling)
        positions = ops.convert(self.inputs["position_ids"], "f32")
        positions = ops.unsqueeze(positions, _integers([1, 2]))  # [T, 1, 1]
        angles = ops.matmul(
            _floats(frequencies.reshape(1, -1, 1)), positions, False, False
        )  # [T, size / 2, 1]
        angles = ops.transpose(angles, _integers([0, 2, 1]))
        angles = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(angles), _integers(1)), ops.unsqueeze(ops.sin(angles), _integers(1))

    def _attention(self, x: Any, layer: Layer, index: int) -> Any:
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        widths = _integers([heads * size, kv_heads * size, kv_heads * size])
        query, key, value = ops.variadic_split(_linear(x, layer.qkv), _integers(2), widths).outputs()
        query = _rotate(_heads(query, heads, size), self.cos, self.sin, size)
        key = _rotate(_heads(key, kv_heads, size), self.cos, self.sin, size)
        names = (f"key_cache.{index}", f"value_cache.{index}")
        caches = {name: _parameter(name, [-1, -1, -1, -1], ov.Type.dynamic) for name in names}
        self.inputs.update(caches)
        attention = _paged_attention(
            [
                _flat(query, heads * size),
                _flat(key, kv_heads * size),
                ops.reshape(value, _integers([-1, kv_heads * size]), False),
                *caches.values(),
            ],
            self.inputs,
            config,
        )
        attended = ops.unsqueeze(attention.output(0), _integers(1))
        return _linear(attended, layer.dense)

    def _layer(self, x: Any, index: int) -> Any:
        layer, epsilon = self.network.layer(index), self.config.norm_epsilon
        x = ops.add(x, self._attention(_rms_norm(x, layer.input_norm, epsilon), layer, index))
        normed = _rms_norm(x, layer.post_norm, epsilon)
        # fc is the gate projection and gate the up projection: TensorRT-LLM's names.
        inner = ops.multiply(ops.swish(_linear(normed, layer.fc)), _linear(normed, layer.gate))
        return ops.add(x, _linear(inner, layer.proj))

    def build(self) -> Any:
        """The ``openvino.Model``; see ``build_graph``."""
        network = self.network
        tokens = ops.unsqueeze(ops.convert(self.inputs["input_ids"], "i32"), _integers(1))
        x = ops.gather(_constant(network.embedding), tokens, _integers(0))
        for index in range(self.config.num_hidden_layers):
            x = self._layer(x, index)
        x = ops.gather(x, self.inputs["logits_rows"], _integers(0))
        x = _rms_norm(x, network.final_norm, self.config.norm_epsilon)
        logits = ops.squeeze(_linear(x, network.lm_head), _integers([1]))
        logits.output(0).get_tensor().set_names({"logits"})
        model = ov.Model([ops.result(logits, name="logits")], list(self.inputs.values()), "llama")
        # Default names count the operations of the whole process: the same network would not give the
        # same file twice.
        for index, operation in enumerate(model.get_ordered_ops()):
            operation.set_friendly_name(f"{operation.get_type_name()}_{index}")
        return model


def _paged_attention(qkv_and_caches: list[Any], inputs: dict[str, Any], config: CheckpointConfig) -> Any:
    """Paged attention without any of its options: no sliding window, no ALiBi, no cache eviction."""

    def empty(dtype: Any, rank: int = 1) -> Any:
        return ops.constant(np.zeros((0,) * rank, dtype))

    def zero() -> Any:
        return ops.constant(np.int32(0))

    integers, floats = np.int32, np.float32
    arguments = [
        *qkv_and_caches,
        inputs["past_lens"],
        inputs["subsequence_begins"],
        inputs["block_indices"],
        inputs["block_indices_begins"],
        _floats(1.0 / config.head_size**0.5),
        zero(),  # sliding_window
        empty(floats),  # alibi_slopes
        inputs["max_context_len"],
        empty(integers),  # score_aggregation_window
        empty(integers),  # rotated_block_indices
        empty(integers),  # rotation_deltas
        empty(floats),  # rotation_trig_lut
        empty(floats),  # xattention_threshold
        zero(),  # xattention_block_size
        zero(),  # xattention_stride
        empty(floats, 4),  # sinks
        zero(),  # adaptive_rkv_start_size
        empty(integers),  # adaptive_rkv_evictable_sizes
        empty(integers),  # adaptive_rkv_diversity_block_set_indices
        empty(integers),  # adaptive_rkv_diversity_block_set_indices_begins
        empty(integers),  # token_type_ids
        empty(np.uint8),  # qq_bias
        empty(integers),  # qq_bias_begins
    ]
    node = ov_op._PagedAttentionExtension([_output(argument) for argument in arguments])
    info = node.get_rt_info()
    for kind in ("k", "v"):
        info[f"num_{kind}_heads"] = config.num_key_value_heads
        info[f"{kind}_head_size"] = config.head_size
    return node


def _output(node: Any) -> Any:
    return node if isinstance(node, ov.Output) else node.output(0)


def build_graph(network: Network) -> Any:
    """The network as an ``openvino.Model``.

    Inputs, T tokens of S sequences: ``input_ids`` and ``position_ids`` i64 [T]; ``past_lens`` i32 [S];
    ``subsequence_begins`` i32 [S + 1]; ``block_indices`` i32 [blocks of all sequences];
    ``block_indices_begins`` i32 [S + 1]; ``max_context_len`` i32 scalar; ``logits_rows`` i32 [n], the
    tokens of the T whose logits are wanted; ``key_cache.N`` and ``value_cache.N``. Output ``logits``
    f32 [n, vocab].
    """
    return LlamaGraph(network).build()
