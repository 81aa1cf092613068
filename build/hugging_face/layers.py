"""Read the layers of a Hugging Face checkpoint, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from build.checkpoints.tensor_file import Float32Array
from build.hugging_face.experts import read_experts, read_stacked_experts
from build.hugging_face.families import QUERY_KEY_NORMS, Family
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.networks.linear import Linear, stack
from build.networks.network import Layer, Network, NetworkConfig
from build.networks.recurrent import CONVOLUTION_TAPS, RecurrentWeights

_PREFIXES = ("model.", "model.language_model.", "language_model.model.")
_HEAD = "lm_head"


class _Projection(NamedTuple):
    """A tensor that becomes a projection of a layer, or a part of one."""

    attribute: str  # of Layer
    name: str
    outputs: int
    inputs: int


def text_prefix(weights: Weights) -> str:
    """Return what the names of the text model's tensors begin with; those of its head do not."""
    return next((each for each in _PREFIXES if f"{each}embed_tokens.weight" in weights), _PREFIXES[0])


class LayerReader:
    """Reads layers of one family.

    Args:
        weights: Tensors of the checkpoint.
        family: Its family.
        config: Its settings.
        form: Form of its quantized projections; None if it has none.
    """

    num_states = 1  # that queries, keys and values read

    def __init__(self, weights: Weights, family: Family, config: NetworkConfig, form: Form | None) -> None:
        self._weights, self._family, self._config, self._form = weights, family, config, form
        self.prefix = text_prefix(weights)

    def layer_name(self, index: int) -> str:
        """Return what the names of a layer's tensors begin with."""
        return f"layers.{index}."

    def norm(self, name: str, size: int) -> Float32Array:
        """Return a gain, float32 [size]."""
        stored = self._weights.take(f"{self.prefix}{name}.weight", (size,)).to_float32()
        return (stored + np.float32(self._family.norm_offset)).astype(np.float32)

    def check(self) -> None:
        """Check names, shapes and types of the tensors of all layers, without reading them.

        Raises:
            CheckpointError: A tensor is missing, does not fit the settings, or is not used.
        """
        for index in range(self._config.num_hidden_layers):
            for projection in self._projections(index):
                self._projection(projection)
            self._norms(index)
            if self._family.has_sinks:
                self._sinks(index)
            if self._config.layers[index].is_recurrent:
                self._recurrence(index)
            if self._config.layers[index].has_experts:
                self._experts(index)
        self._weights.check_all_read(self._family.other_parts)

    def layer(self, index: int) -> Layer:
        """Return one layer."""
        parts: dict[str, list[Linear]] = {}
        for projection in self._projections(index):
            parts.setdefault(projection.attribute, []).append(self._projection(projection)())
        kind = self._config.layers[index]
        if kind.has_experts:
            mlp = self._experts(index)()
        else:
            mlp = {name: parts[name][0] for name in ("fc", "gate", "proj") if name in parts}
            if "gate" not in mlp:  # gate and up projection are one tensor
                mlp["fc"], mlp["gate"] = mlp["fc"].split([self._config.intermediate_size] * 2)
        is_recurrent = kind.is_recurrent
        if self._config.gates_attention and not is_recurrent:
            parts["qkv"] = self._gate_last(*parts["qkv"])
        return Layer(
            stack(parts["qkv"]),
            parts["dense"][0],
            **{**mlp, **self._norms(index)},
            sinks=self._sinks(index) if self._family.has_sinks else None,
            recurrence=self._recurrence(index)() if is_recurrent else None,
        )

    def _gate_last(self, query: Linear, key: Linear, value: Linear) -> list[Linear]:
        """Take queries and gates apart, which alternate by heads."""
        config = self._config
        rows = np.arange(2 * config.num_attention_heads * config.head_size)
        of_queries, of_gates = rows.reshape(config.num_attention_heads, 2, -1).swapaxes(0, 1)
        return [query.rows(of_queries.ravel()), key, value, query.rows(of_gates.ravel())]

    def _sinks(self, index: int) -> Float32Array:
        name = f"{self.prefix}{self.layer_name(index)}self_attn.sinks"
        return self._weights.take(name, (self._config.num_attention_heads,)).to_float32()

    def _experts(self, index: int) -> Callable[[], dict[str, Any]]:
        sizes, names = self._config.experts, self._family.experts
        assert sizes is not None and names is not None
        layer, hidden = f"{self.prefix}{self.layer_name(index)}", self._config.hidden_size
        if names.are_stacked:
            return read_stacked_experts(self._weights, sizes, hidden, self._form, layer)
        return read_experts(self._weights, names, sizes, hidden, self.linear, layer)

    def _recurrence(self, index: int) -> Callable[[], RecurrentWeights]:
        """Check what only a recurrent layer has, and return the function that reads it."""
        sizes = self._config.recurrence
        assert sizes is not None
        name, heads = f"{self.prefix}{self.layer_name(index)}linear_attn.", (sizes.num_value_heads,)
        convolution = self._weights.take(f"{name}conv1d.weight", (sizes.channels, 1, CONVOLUTION_TAPS))
        log_rates, biases = (self._weights.take(f"{name}{part}", heads) for part in ("A_log", "dt_bias"))
        norm = self._weights.take(f"{name}norm.weight", (sizes.value_size,))
        return lambda: RecurrentWeights(
            np.ascontiguousarray(convolution.to_float32()[:, 0].T),
            np.exp(log_rates.to_float32()),
            biases.to_float32(),
            norm.to_float32(),
        )

    def _projections(self, index: int) -> Iterator[_Projection]:
        layer, kind = self.layer_name(index), self._config.layers[index]
        if kind.is_recurrent:
            yield from self._of_recurrence(f"{layer}linear_attn.")
        else:
            yield from self._of_attention(f"{layer}self_attn.")
        if not kind.has_experts:
            yield from self._of_mlp(f"{layer}mlp.")

    def _of_mlp(self, mlp: str) -> Iterator[_Projection]:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        if self._weights.has_any(f"{self.prefix}{mlp}gate_up_proj."):
            yield _Projection("fc", f"{mlp}gate_up_proj", 2 * inner, hidden)
        else:
            yield _Projection("fc", f"{mlp}gate_proj", inner, hidden)
            yield _Projection("gate", f"{mlp}up_proj", inner, hidden)
        yield _Projection("proj", f"{mlp}down_proj", hidden, inner)

    def _of_attention(self, attention: str) -> Iterator[_Projection]:
        config, hidden = self._config, self._config.hidden_size
        heads = config.num_attention_heads * config.head_size
        kv_heads = config.num_key_value_heads * config.head_size
        if self._weights.has_any(f"{self.prefix}{attention}qkv_proj."):
            yield _Projection("qkv", f"{attention}qkv_proj", heads + 2 * kv_heads, hidden)
        else:
            queries = 2 * heads if config.gates_attention else heads
            for name, size in {"q": queries, "k": kv_heads, "v": kv_heads}.items():
                yield _Projection("qkv", f"{attention}{name}_proj", size, self.num_states * hidden)
        yield _Projection("dense", f"{attention}o_proj", hidden, heads)

    def _of_recurrence(self, recurrence: str) -> Iterator[_Projection]:
        sizes, hidden = self._config.recurrence, self._config.hidden_size
        assert sizes is not None
        heads = sizes.num_value_heads
        for name, size in {"qkv": sizes.channels, "z": sizes.value_channels, "b": heads, "a": heads}.items():
            yield _Projection("qkv", f"{recurrence}in_proj_{name}", size, hidden)
        yield _Projection("dense", f"{recurrence}out_proj", hidden, sizes.value_channels)

    def _norms(self, index: int) -> Mapping[str, Float32Array]:
        config = self._config
        sizes = {"query_norm": config.head_size, "key_norm": config.head_size}
        if self._family.norms_all_heads:
            sizes["query_norm"] *= config.num_attention_heads
            sizes["key_norm"] *= config.num_key_value_heads
        layer = self.layer_name(index)
        return {
            attribute: self.norm(f"{layer}{stored}", sizes.get(attribute, config.hidden_size))
            for stored, attribute in self._family.norms.items()
            if not (config.layers[index].is_recurrent and stored in QUERY_KEY_NORMS)
        }

    def linear(self, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """Check the tensors of a projection without bias, and return the function that reads them.

        Raises:
            CheckpointError: One is missing or does not fit the settings.
        """
        if self._form is not None and not self._weights.has_floats(f"{name}.weight"):
            return self._form.read(self._weights, name, outputs, inputs)
        weight = self._weights.take(f"{name}.weight", (outputs, inputs))
        return lambda: Linear(weight)

    def _projection(self, projection: _Projection) -> Callable[[], Linear]:
        name = f"{self.prefix}{projection.name}"
        read = self.linear(name, projection.outputs, projection.inputs)
        has_bias = projection.attribute in self._config.biases
        # Old versions of AutoGPTQ wrote a bias of zeros for projections that have none.
        if not has_bias and (self._form is None or f"{name}.bias" not in self._weights):
            return read
        bias = self._weights.take(f"{name}.bias", (projection.outputs,)).to_float32()
        if not has_bias and bias.any():
            raise self._weights.fail(f"{name}.bias is not zero, and config.json asks for no bias")
        return lambda: replace(read(), bias=bias if has_bias else None)


def read_network(
    directory: Path, family: Family, config: NetworkConfig, form: Form | None
) -> tuple[NetworkConfig, Callable[[], Network]]:
    """Map a checkpoint's weights into memory, and check that they fit its settings.

    Args:
        directory: The checkpoint.
        family: Its family.
        config: Its settings.
        form: Form of its quantized projections; None if it has none.

    Returns:
        The settings, and the function that reads the network; its layers are read when they are asked for.

    Raises:
        CheckpointError: A file is missing or damaged, or tensors do not fit the settings.
    """
    weights = Weights(directory)
    reader = LayerReader(weights, family, config, form)
    table = (config.vocab_size, config.hidden_size)
    embedding = weights.take(f"{reader.prefix}embed_tokens.weight", table)
    is_tied = config.share_embedding_table
    head: Callable[[], Linear] = partial(Linear, embedding)
    if not is_tied or weights.has_any(f"{_HEAD}."):
        head = reader.linear(_HEAD, *table)
        # As in transformers, a head of its own is used also where the settings tie it to the embedding.
        is_tied = is_tied and (form is None or weights.has_floats(f"{_HEAD}.weight"))
        is_tied = is_tied and np.array_equal(head().weight.data, embedding.data)
    final_norm = reader.norm("norm", config.hidden_size)
    reader.check()
    config = replace(config, share_embedding_table=is_tied)

    def read() -> Network:
        return Network(config, embedding, final_norm, Linear(embedding) if is_tied else head(), reader.layer)

    return config, read
