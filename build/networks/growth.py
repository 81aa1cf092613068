"""Give a small network the cost of a large one, without changing its function.

The demonstration pair is small enough for git. A step of its target is therefore too cheap for speculation to
matter. A step of the grown target costs as much as that of a network of its size, while text and acceptance
rate stay those of the trained pair. It has more layers, and more features inside of each MLP.

A new feature adds nothing to the residual stream: either the row of the up projection that computes it is
zero, or the column of the down projection that adds it. The other is random, and new layers consist of such
features only. (If the added matrices were all zero, OpenVINO would store them once for all layers, and a step
would read fewer bytes than the engine reports.) Zeros save nothing at run time: they are stored, read and
multiplied like other numbers. Random columns are clipped to the largest magnitude in their row, so that INT8
keeps the scale of the original weights. Old and new features share no group of 128, so that their activations
are rounded as before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.linear import Linear
from build.networks.network import Layer, Network, NetworkConfig
from build.recipe import Growth
from pipelines.errors import RecipeError

_GROUP = 128  # features that share a scale in dynamic quantization


def check_growth(config: NetworkConfig, growth: Growth) -> None:
    """Check that a network can be grown to these sizes without changing its function.

    Raises:
        RecipeError: A size would shrink, or old and new features would share a scale; or the network has
            biases or experts, or is quantized.
    """
    problems = {
        f"quant_algo={config.quant_algo}": config.quant_algo is not None,
        f"biases of {', '.join(config.biases)}": bool(config.biases),
        "experts": config.experts is not None,
        f"{config.num_hidden_layers} layers, more than num_layers={growth.num_layers}": (
            config.num_hidden_layers > growth.num_layers
        ),
        f"intermediate_size={config.intermediate_size}, which becomes {growth.intermediate_size}": (
            config.intermediate_size > growth.intermediate_size
            or config.intermediate_size % _GROUP > 0
            or growth.intermediate_size % _GROUP > 0
        ),
    }
    found = [problem for problem, is_found in problems.items() if is_found]
    if found:
        raise RecipeError(
            f"growth needs floating-point weights, one MLP without biases in each layer, and sizes that do "
            f"not shrink, in multiples of {_GROUP}: the checkpoint has {'; '.join(found)}",
            "remove growth, or change the sizes under it",
        )


def grown_config(config: NetworkConfig, growth: Growth) -> NetworkConfig:
    """Return the settings of a grown network."""
    layers = config.layers[:1] * growth.num_layers
    return replace(config, layers=layers, intermediate_size=growth.intermediate_size)


def grow(network: Network, growth: Growth) -> Network:
    """Grow a network to larger sizes without changing its function.

    Args:
        network: An unquantized network.
        growth: Sizes to reach.

    Raises:
        RecipeError: See ``check_growth``.
    """
    check_growth(network.config, growth)
    count = network.config.num_hidden_layers
    slots = {index * growth.num_layers // count: index for index in range(count)}  # evenly spread

    def layer(index: int) -> Layer:
        nearest = max(slot for slot in slots if slot <= index)
        rng = np.random.default_rng(index)
        return _grown(network.layer(slots[nearest]), growth.intermediate_size, rng, is_new=nearest != index)

    return replace(network, config=grown_config(network.config, growth), layer=layer)


def _grown(layer: Layer, size: int, rng: np.random.Generator, *, is_new: bool) -> Layer:
    """Return a layer with so many features in its MLP, or one that adds nothing to the stream."""
    num_kept = 0 if is_new else layer.fc.weight.shape[0]
    not_computed = np.arange(num_kept, size, 2)

    def reader(linear: Linear) -> Float32Array:
        weight = linear.to_float32()
        grown: Float32Array = rng.standard_normal((size, weight.shape[1]), np.float32) * weight.std()
        grown[:num_kept] = weight[:num_kept]
        return grown

    up, down = reader(layer.gate), layer.proj.to_float32()
    up[not_computed] = 0
    grown_down = np.zeros((len(down), size), np.float32)
    grown_down[:, :num_kept] = down[:, :num_kept]
    largest = np.abs(down).max(axis=1, keepdims=True)
    added = rng.standard_normal((len(down), len(not_computed)), np.float32) * down.std()
    grown_down[:, not_computed] = np.clip(added, -largest, largest)
    attention = layer.dense.to_float32()
    return replace(
        layer,
        dense=_linear(np.zeros_like(attention) if is_new else attention, layer.dense),
        fc=_linear(reader(layer.fc), layer.fc),
        gate=_linear(up, layer.gate),
        proj=_linear(grown_down, layer.proj),
    )


def _linear(values: Float32Array, like: Linear) -> Linear:
    return Linear(Tensor.from_float32(values, like.weight.dtype))
