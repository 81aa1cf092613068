"""Build Llama as the stateful graph that OpenVINO GenAI reads.

GenAI converts the graph to paged attention, but only if it finds the pattern that optimum-intel writes: a
growing state per layer that is read through ``beam_idx``, key heads repeated for their query heads, and
attention with a mask. Everything else, including the bits of the weights, is the graph of our own engine
(``build/openvino/decoder_graph.py``), so both engines use the same kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino.op.util import Variable, VariableInfo

from build.networks.network import Layer, Network
from build.openvino.decoder_graph import DecoderGraph
from build.openvino.operations import (
    floats,
    integers,
    openvino_product,
    parameter,
    rms_norm,
    rows,
    split_heads,
)


def _heads(x: Any, num_heads: int, head_size: int) -> Any:
    """Reshape [B, S, heads * size] to [B, heads, S, size]."""
    return ops.transpose(split_heads(x, num_heads, head_size), integers([0, 2, 1, 3]))


class StatefulGraph(DecoderGraph):
    """Builder of one graph for B sequences of S new tokens; use ``build_stateful_graph``."""

    def __init__(self, network: Network) -> None:
        self.network, self.config, self.product = network, network.config, openvino_product
        self.inputs = {
            "input_ids": parameter("input_ids", [-1, -1], ov.Type.i64),
            "attention_mask": parameter("attention_mask", [-1, -1], ov.Type.i64),
            "position_ids": parameter("position_ids", [-1, -1], ov.Type.i64),
            "beam_idx": parameter("beam_idx", [-1], ov.Type.i32),
        }
        for name, port in self.inputs.items():
            port.set_friendly_name(name)  # GenAI looks some of them up by this name
        self.states: list[Any] = []
        self._tables = {}
        positions = ops.convert(self.inputs["position_ids"], "f32")
        self.positions = ops.unsqueeze(positions, integers(1))
        # GenAI removes the mask, because paged attention is causal, but its pattern requires one.
        mask = ops.convert(self.inputs["attention_mask"], "f32")
        self.mask = ops.unsqueeze(mask, integers([1, 2]))  # [B, 1, 1, past + S]

    def _with_past(self, new: Any, name: str) -> Any:
        """Append ``new`` [B, heads, S, size] to a state, and return the new state."""
        heads, size = self.config.num_key_value_heads, self.config.head_size
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, heads, -1, size])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        batch = ops.gather(ops.shape_of(self.inputs["input_ids"], "i64"), integers([0]), integers(0))
        shape = ops.concat([batch, integers([heads]), integers([0]), integers([size])], 0)
        past = ops.read_value(ops.broadcast(floats(0.0), shape), variable)
        past = ops.gather(past, self.inputs["beam_idx"], integers(0))
        joined = ops.concat([past, new], -2)
        self.states.append(ops.assign(joined, variable))
        return joined

    def _repeated(self, x: Any) -> Any:
        """Repeat heads: [B, key heads, S, size] to [B, query heads, S, size]."""
        config = self.config
        group = config.num_attention_heads // config.num_key_value_heads
        if group == 1:
            return x
        ones = np.array([1, 1, group, 1, 1], np.int64)
        spread = ops.broadcast(
            ops.unsqueeze(x, integers(2)), ops.constant(ones), broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(
            spread, integers([0, config.num_attention_heads, -1, config.head_size]), special_zero=True
        )

    def _attention(self, x: Any, layer: Layer, index: int) -> Any:
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        query, key, value = self._query_key_value(x, layer)
        rotary = config.layers[index].rotary
        assert rotary is not None, "the peers' networks are Llama's"
        query = self._rotated(_heads(query, heads, size), rotary)
        key = self._with_past(self._rotated(_heads(key, kv_heads, size), rotary), f"key.{index}")
        value = self._with_past(_heads(value, kv_heads, size), f"value.{index}")
        attended = ops.scaled_dot_product_attention(
            query,
            self._repeated(key),
            self._repeated(value),
            self.mask,
            floats(1.0 / size**0.5),
            causal=False,
        )
        joined = ops.reshape(
            ops.transpose(attended, integers([0, 2, 1, 3])), integers([0, 0, heads * size]), True
        )
        return self._linear(joined, layer.dense)

    def build(self) -> Any:
        """Return the ``openvino.Model``; see ``build_stateful_graph``."""
        network = self.network
        tokens = ops.convert(self.inputs["input_ids"], "i32")
        x = rows(network.embedding, tokens)
        for index in range(self.config.num_hidden_layers):
            x = self._layer(x, index)
        x = rms_norm(x, network.final_norm, self.config.norm_epsilon)
        logits = self._linear(x, network.lm_head)
        logits.output(0).get_tensor().set_names({"logits"})
        return ov.Model([ops.result(logits, name="logits")], self.states, list(self.inputs.values()), "llama")


def build_stateful_graph(network: Network) -> Any:
    """Return the network as an ``openvino.Model`` that keeps keys and values as state.

    Inputs: ``input_ids`` and ``position_ids`` i64 [B, S]; ``attention_mask`` i64 [B, past + S];
    ``beam_idx`` i32 [B]. Output ``logits`` f32 [B, S, vocab]. Without GenAI's conversion, attention is not
    causal within the S new tokens, so pass one token at a time.
    """
    return StatefulGraph(network).build()
