"""Grow a network to larger sizes without changing its function.

The demonstration pair is small enough for git. A step of its target is therefore too cheap for speculation to
matter. A step of the grown target costs as much as a step of a model of that size, while text and acceptance
rate stay those of the trained pair. With d features grown to d':

- The residual stream gets new coordinates, which are always zero. The mean square of [x, 0] in RMSNorm is
  smaller by d/d', so gain' = gain * sqrt(d/d') and epsilon' = epsilon * d/d' give the same output. Weights
  that read the new coordinates are random; weights that write them are zero.
- A new feed-forward feature or head is computed and added to the stream like any other, but one of its two
  factors is zero: for half of them the rows that compute it (up projection, values), for the other half the
  columns that add it to the stream. The other factor is random. New layers consist of such features only, so
  they add nothing.

The result equals that of the small network up to the rounding of gain'. Dynamic quantization can amplify this
difference where a value is on the edge between two steps. Random weights are clipped to the largest magnitude
in their row, so that INT8 keeps the scale of the original weights. Original features never share a group of
128 with random ones, so that dynamic quantization rounds their activations as before. The zeros save nothing
at run time: they are stored, read and multiplied like other numbers. (If the added matrices were all zero,
OpenVINO would store them once for all layers, and a step would read fewer bytes than the engine reports.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.linear import Linear
from build.networks.network import Layer, Network, NetworkConfig
from build.recipe import Growth
from pipelines.errors import RecipeError

_GROWING = ("LlamaForCausalLM", "MistralForCausalLM")
_GROUP = 128  # features that share a scale in dynamic quantization
_Slots = npt.NDArray[np.intp]


def _growth_error(what: str) -> RecipeError:
    return RecipeError(f"growth: {what}", "change the sizes under growth")


def _is_pure(kept: _Slots, total: int) -> bool:
    """Return whether no group of 128 features mixes original and new ones."""
    if total % _GROUP:
        return False
    original = np.zeros(total, bool)
    original[kept] = True
    groups = original.reshape(-1, _GROUP)
    return bool((groups.all(axis=1) | ~groups.any(axis=1)).all())


def _features(heads: _Slots, head_size: int) -> _Slots:
    """Return the features of the given heads, in order."""
    return (heads[:, None] * head_size + np.arange(head_size)).reshape(-1)


def head_slots(config: NetworkConfig, growth: Growth) -> tuple[_Slots, _Slots]:
    """Return the positions of the original query heads and key heads among the grown ones.

    Key head k stays number k and its query heads become the first of the grown group of k.
    """
    group = config.num_attention_heads // config.num_key_value_heads
    grown_group = growth.num_heads // growth.num_kv_heads
    heads = np.arange(config.num_attention_heads)
    return (heads // group) * grown_group + heads % group, np.arange(config.num_key_value_heads)


def layer_slots(config: NetworkConfig, growth: Growth) -> list[int]:
    """Return the positions of the original layers among the grown ones, spread evenly."""
    return [
        index * growth.num_layers // config.num_hidden_layers for index in range(config.num_hidden_layers)
    ]


def check_growth(config: NetworkConfig, growth: Growth) -> None:
    """Check that a network can be grown to these sizes without changing its function.

    Raises:
        RecipeError: A size would shrink, heads do not divide, a group of 128 features would mix original and
            random ones, or the checkpoint is quantized.
    """
    if config.quant_algo is not None:
        raise RecipeError(
            "growth needs floating-point weights, and the checkpoint is quantized: "
            f"quant_algo={config.quant_algo}",
            "remove growth, or use the unquantized checkpoint",
        )
    if config.architecture not in _GROWING or config.biases:
        raise _growth_error(
            f"only {' or '.join(_GROWING)} without biases can grow: architecture={config.architecture}, "
            f"biases of {', '.join(config.biases) or 'none'}"
        )
    sizes = {
        "hidden_size": (config.hidden_size, growth.hidden_size),
        "num_layers": (config.num_hidden_layers, growth.num_layers),
        "intermediate_size": (config.intermediate_size, growth.intermediate_size),
        "num_heads": (config.num_attention_heads, growth.num_heads),
        "num_kv_heads": (config.num_key_value_heads, growth.num_kv_heads),
    }
    for name, (old, new) in sizes.items():
        if new < old:
            raise _growth_error(f"{name}={new} would shrink: the checkpoint has {old}")
    group = config.num_attention_heads // config.num_key_value_heads
    if growth.num_heads % growth.num_kv_heads or growth.num_heads // growth.num_kv_heads < group:
        raise _growth_error(
            f"num_heads={growth.num_heads} must be a multiple of num_kv_heads={growth.num_kv_heads}, with at "
            f"least {group} query heads per key head"
        )
    heads, _ = head_slots(config, growth)
    features = {
        "hidden_size": (np.arange(config.hidden_size), growth.hidden_size),
        "intermediate_size": (np.arange(config.intermediate_size), growth.intermediate_size),
        "num_heads": (_features(heads, config.head_size), growth.num_heads * config.head_size),
    }
    for name, (kept, total) in features.items():
        if not _is_pure(kept, total):
            old, new = sizes[name]
            raise _growth_error(
                f"{name} {old} -> {new}, heads of {config.head_size}: old and new features would share a "
                f"scale in groups of {_GROUP}"
            )


class _Grower:
    """Grow the weights of one network."""

    def __init__(self, network: Network, growth: Growth) -> None:
        config = network.config
        self.network, self.growth = network, growth
        self.dtype = network.embedding.dtype
        size = config.head_size
        heads, kv_heads = head_slots(config, growth)
        self.hidden = np.arange(config.hidden_size)
        self.inner = np.arange(config.intermediate_size)
        self.heads = _features(heads, size)
        self.values = _features(kv_heads, size)
        self.attention_size, self.values_size = growth.num_heads * size, growth.num_kv_heads * size
        self.sources = {slot: index for index, slot in enumerate(layer_slots(config, growth))}

    def norm(self, gain: Float32Array | None) -> Float32Array:
        assert gain is not None, "Llama has a norm before each block"
        grown = np.ones(self.growth.hidden_size, np.float32)
        grown[self.hidden] = gain
        ratio = self.network.config.hidden_size / self.growth.hidden_size
        return (grown * np.float32(ratio**0.5)).astype(np.float32)

    def _random(self, rng: np.random.Generator, shape: tuple[int, int], like: Float32Array) -> Float32Array:
        grown = rng.standard_normal(shape, dtype=np.float32)
        grown *= like.std()
        limit = np.abs(like).max()
        return np.clip(grown, -limit, limit, out=grown)

    def _insert(self, grown: Float32Array, weight: Float32Array, rows: _Slots, columns: _Slots) -> None:
        largest = np.abs(weight).max(axis=1, keepdims=True)
        grown[rows] = np.clip(grown[rows], -largest, largest)
        grown[np.ix_(rows, columns)] = weight

    def reader(
        self, rng: np.random.Generator, weight: Float32Array, rows: _Slots, num_rows: int, silent: _Slots
    ) -> Linear:
        """Grow a projection that reads the stream: original at ``rows``, zero at ``silent``, else random."""
        grown = self._random(rng, (num_rows, self.growth.hidden_size), weight)
        grown[silent] = 0
        if rows.size:
            self._insert(grown, weight, rows, self.hidden)
        return Linear(Tensor.from_float32(grown, self.dtype))

    def writer(
        self,
        rng: np.random.Generator,
        weight: Float32Array,
        columns: _Slots,
        num_columns: int,
        silent: _Slots,
    ) -> Linear:
        """Grow a projection that writes the stream: the original block, random if it reads zeros, else 0."""
        grown = np.zeros((self.growth.hidden_size, num_columns), np.float32)
        grown[:, silent] = self._random(rng, (self.growth.hidden_size, silent.size), weight)
        if columns.size:
            self._insert(grown, weight, self.hidden, columns)
        return Linear(Tensor.from_float32(grown, self.dtype))

    def layer(self, index: int) -> Layer:
        """Return a layer of the grown network: an original one, or one that adds nothing to the stream."""
        rng = np.random.default_rng([self.growth.seed, index])
        nearest = max(slot for slot in self.sources if slot <= index)
        source = self.network.layer(self.sources[nearest])
        size, group = self.network.config.head_size, self.growth.num_heads // self.growth.num_kv_heads
        nothing = np.arange(0)
        is_original = nearest == index
        inner, heads, values = (self.inner, self.heads, self.values) if is_original else (nothing,) * 3
        # Half of the new features and key heads have zeros where they are computed, the others where they
        # are added to the stream.
        silent_inner = np.setdiff1d(np.arange(self.growth.intermediate_size), inner)[::2]
        new_kv_heads = np.setdiff1d(np.arange(self.values_size), values)[::size] // size
        silent_kv = new_kv_heads[::2]
        silent_heads = _features((silent_kv[:, None] * group + np.arange(group)).reshape(-1), size)
        values_begin = self.attention_size + self.values_size
        qkv_rows = np.concatenate([heads, self.attention_size + values, values_begin + values])
        return Layer(
            input_norm=self.norm(source.input_norm),
            post_norm=self.norm(source.post_norm),
            qkv=(
                self.reader(
                    rng,
                    np.concatenate([part.to_float32() for part in source.qkv]),
                    qkv_rows,
                    values_begin + self.values_size,
                    values_begin + _features(silent_kv, size),
                ),
            ),
            dense=self.writer(rng, source.dense.to_float32(), heads, self.attention_size, silent_heads),
            fc=self.reader(rng, source.fc.to_float32(), inner, self.growth.intermediate_size, nothing),
            gate=self.reader(
                rng, source.gate.to_float32(), inner, self.growth.intermediate_size, silent_inner
            ),
            proj=self.writer(
                rng, source.proj.to_float32(), inner, self.growth.intermediate_size, silent_inner
            ),
        )

    def table(self, table: Tensor) -> Tensor:
        """Grow the embedding or the output head with columns of zeros."""
        grown = np.zeros((table.shape[0], self.growth.hidden_size), table.data.dtype)
        grown[:, self.hidden] = table.data
        return Tensor(table.dtype, grown.shape, grown)


def grown_config(config: NetworkConfig, growth: Growth) -> NetworkConfig:
    """Return the settings of a grown network."""
    return replace(
        config,
        hidden_size=growth.hidden_size,
        layers=config.layers[:1] * growth.num_layers,
        intermediate_size=growth.intermediate_size,
        num_attention_heads=growth.num_heads,
        num_key_value_heads=growth.num_kv_heads,
        norm_epsilon=config.norm_epsilon * config.hidden_size / growth.hidden_size,
    )


def grow(network: Network, growth: Growth) -> Network:
    """Grow a network to larger sizes without changing its function.

    Args:
        network: An unquantized network.
        growth: Sizes to reach and the seed of the random weights.

    Raises:
        RecipeError: See ``check_growth``.
    """
    config = network.config
    check_growth(config, growth)
    grower = _Grower(network, growth)
    embedding = grower.table(network.embedding)
    head = embedding if config.share_embedding_table else grower.table(network.lm_head.weight)
    return Network(
        config=grown_config(config, growth),
        embedding=embedding,
        final_norm=grower.norm(network.final_norm),
        lm_head=Linear(head, bias=network.lm_head.bias),
        layer=grower.layer,
    )
