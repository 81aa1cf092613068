"""Llama as the stateful graph that OpenVINO GenAI reads.

GenAI turns it into paged attention itself, and only where it sees the pattern that optimum-intel writes:
a growing state per layer that is read through ``beam_idx``, key heads repeated for their query heads,
attention with a mask. Everything else, the bits of the weights included, is the graph of our own engine
(``build/llama_graph.py``), so both compute with the same kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino.op.util import Variable, VariableInfo

from build.llama_graph import (
    LlamaGraph,
    _constant,
    _floats,
    _heads,
    _integers,
    _linear,
    _parameter,
    _rms_norm,
    _rotate,
    rotary_frequencies,
)
from build.network import Layer, Network


class StatefulGraph(LlamaGraph):
    """Builds one graph; use ``build_stateful_graph``. Shapes: B sequences of S new tokens."""

    def __init__(self, network: Network) -> None:
        self.network, self.config = network, network.config
        self.inputs = {
            "input_ids": _parameter("input_ids", [-1, -1], ov.Type.i64),
            "attention_mask": _parameter("attention_mask", [-1, -1], ov.Type.i64),
            "position_ids": _parameter("position_ids", [-1, -1], ov.Type.i64),
            "beam_idx": _parameter("beam_idx", [-1], ov.Type.i32),
        }
        for name, parameter in self.inputs.items():
            parameter.set_friendly_name(name)  # GenAI's pass looks some up by this name
        self.states: list[Any] = []
        self.cos, self.sin = self._rotary_tables()
        # The pass drops the mask, because paged attention is causal by itself, but it looks for one.
        mask = ops.convert(self.inputs["attention_mask"], "f32")
        self.mask = ops.unsqueeze(mask, _integers([1, 2]))  # [B, 1, 1, past + S]

    def _rotary_tables(self) -> tuple[Any, Any]:
        config = self.config
        frequencies = rotary_frequencies(config.head_size, config.rotary_base, config.rotary_scaling)
        positions = ops.unsqueeze(ops.convert(self.inputs["position_ids"], "f32"), _integers(1))
        angles = ops.matmul(_floats(frequencies.reshape(1, -1, 1)), positions, False, False)
        angles = ops.transpose(angles, _integers([0, 2, 1]))  # [B, S, size / 2]
        angles = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(angles), _integers(1)), ops.unsqueeze(ops.sin(angles), _integers(1))

    def _with_past(self, new: Any, name: str) -> Any:
        """The state with ``new`` [B, heads, S, size] behind it; it becomes the state."""
        heads, size = self.config.num_key_value_heads, self.config.head_size
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, heads, -1, size])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        batch = ops.gather(ops.shape_of(self.inputs["input_ids"], "i64"), _integers([0]), _integers(0))
        shape = ops.concat([batch, _integers([heads]), _integers([0]), _integers([size])], 0)
        past = ops.read_value(ops.broadcast(_floats(0.0), shape), variable)
        past = ops.gather(past, self.inputs["beam_idx"], _integers(0))
        joined = ops.concat([past, new], -2)
        self.states.append(ops.assign(joined, variable))
        return joined

    def _repeated(self, x: Any) -> Any:
        """[B, key heads, S, size] -> [B, query heads, S, size]."""
        config = self.config
        group = config.num_attention_heads // config.num_key_value_heads
        if group == 1:
            return x
        ones = np.array([1, 1, group, 1, 1], np.int64)
        spread = ops.broadcast(
            ops.unsqueeze(x, _integers(2)), ops.constant(ones), broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(
            spread, _integers([0, config.num_attention_heads, -1, config.head_size]), special_zero=True
        )

    def _attention(self, x: Any, layer: Layer, index: int) -> Any:
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        widths = _integers([heads * size, kv_heads * size, kv_heads * size])
        query, key, value = ops.variadic_split(_linear(x, layer.qkv), _integers(2), widths).outputs()
        query = _rotate(_heads(query, heads, size), self.cos, self.sin, size)
        key = self._with_past(_rotate(_heads(key, kv_heads, size), self.cos, self.sin, size), f"key.{index}")
        value = self._with_past(_heads(value, kv_heads, size), f"value.{index}")
        attended = ops.scaled_dot_product_attention(
            query,
            self._repeated(key),
            self._repeated(value),
            self.mask,
            _floats(1.0 / size**0.5),
            causal=False,
        )
        joined = ops.reshape(
            ops.transpose(attended, _integers([0, 2, 1, 3])), _integers([0, 0, heads * size]), True
        )
        return _linear(joined, layer.dense)

    def build(self) -> Any:
        """The ``openvino.Model``; see ``build_stateful_graph``."""
        network = self.network
        tokens = ops.convert(self.inputs["input_ids"], "i32")
        x = ops.gather(_constant(network.embedding), tokens, _integers(0))
        for index in range(self.config.num_hidden_layers):
            x = self._layer(x, index)
        x = _rms_norm(x, network.final_norm, self.config.norm_epsilon)
        logits = _linear(x, network.lm_head)
        logits.output(0).get_tensor().set_names({"logits"})
        return ov.Model([ops.result(logits, name="logits")], self.states, list(self.inputs.values()), "llama")


def build_stateful_graph(network: Network) -> Any:
    """The network as an ``openvino.Model`` that keeps keys and values as state.

    Inputs: ``input_ids`` and ``position_ids`` i64 [B, S]; ``attention_mask`` i64 [B, past + S];
    ``beam_idx`` i32 [B]. Output ``logits`` f32 [B, S, vocab]. Run as it is, without the pass that GenAI
    applies, it is not causal within the S new tokens: give it one at a time.
    """
    return StatefulGraph(network).build()
