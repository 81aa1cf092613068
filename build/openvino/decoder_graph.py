"""Build a decoder as an OpenVINO graph with a paged KV cache.

One graph serves all families of networks; they differ in their ``NetworkConfig`` and in the weights that a
layer has. The graph is written operation by operation instead of being converted from torch, because the CPU
plugin fuses RMSNorm, rotary embedding and compressed projections only in the patterns of
``build/openvino/operations.py``. A test counts the fusions in the executed graph.

A batch is ragged: the tokens of all sequences are concatenated, T in total, and the hidden state has the
shape [T, 1, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import openvino as ov
from openvino import opset15 as ops

from build.checkpoints.tensor_file import Float32Array
from build.networks.linear import Linear
from build.networks.network import Layer, Network, NetworkConfig, Rotary
from build.openvino.operations import (
    Product,
    floats,
    integers,
    linear,
    merge_heads,
    openvino_product,
    parameter,
    rms_norm,
    rotary_tables,
    rotate,
    rows,
    scaled,
    selected,
    split_heads,
)
from build.openvino.own_experts import ChosenExperts
from build.openvino.own_operators import OwnAttention
from build.openvino.own_recurrence import OwnRecurrence
from build.openvino.paged_attention import PagedAttention, network_inputs


def _clamped_swiglu(gate: Any, up: Any) -> Any:
    """Gate as gpt-oss does."""
    limit = 7.0
    swish = ops.swish(ops.minimum(gate, floats(limit)), floats(1.702))
    return ops.multiply(ops.add(ops.clamp(up, -limit, limit), floats(1.0)), swish)


_GATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "silu": lambda gate, up: ops.multiply(ops.swish(gate), up),
    "gelu_tanh": lambda gate, up: ops.multiply(ops.gelu(gate, "tanh"), up),
    "clamped_swiglu": _clamped_swiglu,
}


Attention = PagedAttention | OwnAttention
"""Writes attention and its caches."""


class DecoderGraph:
    """Builder of one graph; use ``build_graph``."""

    def __init__(self, network: Network, attention: Attention, product: Product) -> None:
        self.network = network
        self.attention = attention
        self.product = product
        self.config: NetworkConfig = network.config
        self.inputs = network_inputs()
        positions = ops.convert(self.inputs["position_ids"], "f32")
        self.positions = ops.unsqueeze(positions, integers([1, 2]))
        self._tables: dict[Rotary, tuple[Any, Any]] = {}
        self.recurrence = None
        if self.config.recurrence is not None:
            self.recurrence = OwnRecurrence(self.config.recurrence, self.config.norm_epsilon)
            self.inputs["slots"] = parameter("slots", [-1], ov.Type.i32)

    def _rotated(self, x: Any, rotary: Rotary) -> Any:
        """Rotate [B, heads, S, size]; layers with equal settings share the tables."""
        if rotary not in self._tables:
            self._tables[rotary] = rotary_tables(self.positions, rotary)
        return rotate(x, *self._tables[rotary], rotary.size, self.config.head_size)

    def _with_positions(
        self, x: Any, num_heads: int, norm: Float32Array | None, rotary: Rotary | None
    ) -> Any:
        """Normalize and rotate queries or keys [T, 1, heads * size]; return the same shape without the 1."""
        config = self.config
        per_head = norm is not None and norm.size == config.head_size
        if norm is not None and not per_head:
            x = rms_norm(x, norm, config.norm_epsilon)
        heads = split_heads(x, num_heads, config.head_size)
        if norm is not None and per_head:
            heads = rms_norm(heads, norm, config.norm_epsilon)
        heads = ops.transpose(heads, integers([0, 2, 1, 3]))
        if rotary is not None:
            heads = self._rotated(heads, rotary)
        return merge_heads(heads, num_heads * config.head_size)

    def _query_key_value(self, x: Any, layer: Layer) -> Any:
        config = self.config
        parts = [self._linear(x, weights) for weights in layer.qkv]
        stacked = parts[0] if len(parts) == 1 else ops.concat(parts, 2)
        widths = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        widths += [config.num_attention_heads] * config.gates_attention
        of_each = integers([heads * config.head_size for heads in widths])
        return ops.variadic_split(stacked, integers(2), of_each).outputs()

    def _attention(self, x: Any, layer: Layer, index: int) -> Any:
        config, kind = self.config, self.config.layers[index]
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
        query, key, value, *gate = self._query_key_value(x, layer)
        names = (f"key_cache.{index}", f"value_cache.{index}")
        caches = {name: self.attention.cache(name) for name in names}
        self.inputs.update(caches)
        attended = self.attention.attend(
            [
                self._with_positions(query, heads, layer.query_norm, kind.rotary),
                self._with_positions(key, kv_heads, layer.key_norm, kind.rotary),
                ops.reshape(value, integers([-1, kv_heads * size]), False),
            ],
            list(caches.values()),
            self.inputs,
            kind.window or 0,
            layer.sinks,
        )
        attended = ops.unsqueeze(attended, integers(1))
        if gate:
            attended = ops.multiply(attended, ops.sigmoid(gate[0]))
        return self._linear(attended, layer.dense)

    def _recurrence(self, x: Any, layer: Layer, index: int) -> Any:
        assert layer.recurrence is not None and self.recurrence is not None
        parts = [self._linear(x, weights) for weights in layer.qkv]
        projected = parts[0] if len(parts) == 1 else ops.concat(parts, 2)
        tables = self.recurrence.tables(index)
        self.inputs.update(tables)
        made = self.recurrence.recur(projected, layer.recurrence, list(tables.values()), self.inputs)
        return self._linear(made, layer.dense)

    def _mlp(self, x: Any, layer: Layer) -> Any:
        if layer.router is None or self.config.experts is None:
            return self._gated(x, layer.mlp(), self._linear)
        chosen = ChosenExperts(x, layer.router, self.config.experts)
        made = chosen.mixed(self._gated(x, layer.mlp(), chosen.linear))
        if not layer.shared:
            return made
        return ops.add(made, ops.multiply(self._gated(x, layer.shared, self._linear), chosen.share_of_shared))

    def _gated(self, x: Any, mlp: tuple[Linear, ...], apply: Callable[[Any, Linear], Any]) -> Any:
        """Compute an MLP whose projections a function applies."""
        gate, up, down = mlp
        gated = _GATES[self.config.activation](apply(x, gate), apply(x, up))
        return apply(gated, down)

    def _linear(self, x: Any, weights: Linear) -> Any:
        return linear(x, weights, self.product)

    def _norm(self, x: Any, gain: Float32Array | None) -> Any:
        return x if gain is None else rms_norm(x, gain, self.config.norm_epsilon)

    def _added(self, x: Any, block: Any, norm: Float32Array | None) -> Any:
        return ops.add(x, scaled(self._norm(block, norm), self.config.residual_multiplier))

    def _layer(self, x: Any, index: int) -> Any:
        layer = self.network.layer(index)
        mixed = self._recurrence if self.config.layers[index].is_recurrent else self._attention
        attended = mixed(self._norm(x, layer.input_norm), layer, index)
        x = self._added(x, attended, layer.attention_output_norm)
        return self._added(x, self._mlp(self._norm(x, layer.post_norm), layer), layer.mlp_output_norm)

    def _head(self, x: Any, multiply: Product) -> Any:
        network, config = self.network, self.config
        x = ops.gather(x, self.inputs["logits_rows"], integers(0))
        x = rms_norm(x, network.final_norm, config.norm_epsilon)
        logits = _flat(linear(x, network.lm_head, multiply))
        logits = scaled(logits, 1 / config.logits_divisor)
        if config.logits_softcap is not None:
            logits = scaled(ops.tanh(scaled(logits, 1 / config.logits_softcap)), config.logits_softcap)
        return logits if network.logit_rows is None else selected(logits, network.logit_rows)

    def _layers(self, x: Any) -> tuple[Any, dict[str, Any]]:
        """Return the last hidden state, and outputs beside the logits by name."""
        states = [x]
        for index in range(self.config.num_hidden_layers):
            states.append(self._layer(states[-1], index))
        features = [states[index] for index in self.config.feature_layers]
        return states[-1], {"features": _flat(ops.concat(features, 2))} if features else {}

    def build(self) -> Any:
        """Return the ``openvino.Model``; see ``build_graph``."""
        network, config = self.network, self.config
        tokens = ops.unsqueeze(ops.convert(self.inputs["input_ids"], "i32"), integers(1))
        is_tied = network.lm_head.weight is network.embedding  # and not quantized on its own
        if is_tied:
            table = floats(network.embedding.to_float32())
            x = ops.gather(table, tokens, integers(0))
        else:
            x = rows(network.embedding, tokens)
        x = scaled(x, config.embedding_multiplier)
        x, others = self._layers(x)
        multiply = (lambda x, _: ops.matmul(x, table, False, True)) if is_tied else self.product
        outputs = {"logits": self._head(x, multiply), **others}
        for name, output in outputs.items():
            output.output(0).get_tensor().set_names({name})
        results = [ops.result(output, name=name) for name, output in outputs.items()]
        model = ov.Model(results, list(self.inputs.values()), "decoder")
        # Default names number all operations of the process, so the same network would not give the
        # same file twice.
        for index, operation in enumerate(model.get_ordered_ops()):
            operation.set_friendly_name(f"{operation.get_type_name()}_{index}")
        return model


class TrainedHeadGraph(DecoderGraph):
    """Builder of the graph of a trained head: a layer that reads a hidden state beside each embedding."""

    def __init__(self, network: Network, attention: Attention, product: Product) -> None:
        super().__init__(network, attention, product)
        width = self.config.hidden_size
        of_all = width * len(self.config.feature_layers)
        self.inputs["features"] = parameter("features", [-1, of_all], ov.Type.f32)
        self.inputs["hidden"] = parameter("hidden", [-1, width], ov.Type.f32)
        self.inputs["hidden_rows"] = parameter("hidden_rows", [-1], ov.Type.i32)

    def _state(self, features: Callable[[Any], Any]) -> Any:
        """Return for each token the target's features, as the function makes them one state, or its own."""
        read, hidden = (ops.unsqueeze(self.inputs[name], integers(1)) for name in ("features", "hidden"))
        return ops.gather(ops.concat([features(read), hidden], 0), self.inputs["hidden_rows"], integers(0))

    def _layers(self, x: Any) -> tuple[Any, dict[str, Any]]:
        fusion, layer = self.network.fusion, self.network.layer(0)
        assert fusion is not None
        state = self._state(lambda features: self._linear(features, fusion.fc))
        normed = self._norm(state, fusion.hidden_norm)
        both = ops.concat([self._norm(x, layer.input_norm), normed], 2)
        attended = self._attention(both, layer, 0)
        x = self._added(normed if fusion.norms_residual else state, attended, None)
        x = self._added(x, self._mlp(self._norm(x, layer.post_norm), layer), None)
        return x, {"next_hidden": _flat(ops.gather(x, self.inputs["logits_rows"], integers(0)))}


class MtpGraph(TrainedHeadGraph):
    """Builder of the graph of an MTP module: an ordinary layer behind the projection of both states."""

    def _layers(self, x: Any) -> tuple[Any, dict[str, Any]]:
        fusion = self.network.fusion
        assert fusion is not None
        state = self._state(lambda features: self._norm(features, fusion.features_norm))
        both = [self._norm(x, fusion.embedding_norm), self._norm(state, fusion.hidden_norm)]
        x = self._layer(self._linear(ops.concat(both, 2), fusion.fc), 0)
        own = self._norm(ops.gather(x, self.inputs["logits_rows"], integers(0)), self.network.final_norm)
        return x, {"next_hidden": _flat(own)}


def _flat(x: Any) -> Any:
    """Reshape [T, 1, n] to [T, n]."""
    return ops.squeeze(x, integers([1]))


def build_graph(
    network: Network, attention: Attention | None = None, product: Product = openvino_product
) -> Any:
    """Return the network as an ``openvino.Model``, by default with OpenVINO's attention and products.

    Inputs, T tokens of S sequences: ``input_ids`` and ``position_ids`` i64 [T]; ``past_lens`` i32 [S];
    ``subsequence_begins`` i32 [S + 1]; ``block_indices`` i32 [blocks of all sequences];
    ``block_indices_begins`` i32 [S + 1]; ``max_context_len`` i32 scalar; ``logits_rows`` i32 [n], indices
    of the tokens whose logits are computed; ``key_cache.N`` and ``value_cache.N``. Output: ``logits``
    f32 [n, ``network.num_logits``]. A target with ``feature_layers`` has a second one: ``features`` f32
    [T, layers * hidden], what enters these layers. A network with recurrent layers has the inputs of
    ``OwnRecurrence`` too: ``slots`` i32 [S], and for these layers ``state.N`` and ``state_log.N``, no caches.

    A trained head has three more inputs: ``features`` of n tokens; ``hidden`` f32 [m, hidden], what the head
    returned for m others; and ``hidden_rows`` i32 [T]. Row i < n stands for features i, row n + j for hidden
    state j. A second output ``next_hidden`` f32 [rows of the logits, hidden] is what enters the final norm,
    or in an MTP module what leaves it.
    """
    graph = DecoderGraph
    if network.fusion is not None:
        graph = TrainedHeadGraph if network.fusion.embedding_norm is None else MtpGraph
    return graph(network, attention or PagedAttention(network.config), product).build()
