"""Generate text in batches with a KV cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from tools.demo_pair.model import (
    EMBEDDING,
    FINAL_NORM,
    ModelConfig,
    Weights,
    finish_block,
    logits_of,
    project_qkv,
    rotary_tables,
    rotate,
)

GREEDY = 0.0
"""Temperature at which the most likely token is chosen."""


Noise = Callable[[int], torch.Tensor]
"""Return Gumbel noise ``[batch, vocabulary]`` for a generated position, always the same."""


def gumbel_noise(batch: int, vocabulary: int, seed: int) -> Noise:
    """Return standard Gumbel noise, float32, that depends only on the seed and the position."""

    def at(index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        uniform = torch.rand((batch, vocabulary), generator=generator).clamp_(1e-20, 1 - 1e-7)
        return -torch.log(-torch.log(uniform))

    return at


class CachedModel:
    """One model with a KV cache for ``batch`` sequences of at most ``capacity`` positions."""

    def __init__(self, weights: Weights, config: ModelConfig, batch: int, capacity: int) -> None:
        """Allocate the cache, two float32 tensors ``[batch, kv_heads, capacity, head_size]`` per layer."""
        self._weights = weights
        self._config = config
        shape = (batch, config.kv_heads, capacity, config.head_size)
        self._keys = [torch.zeros(shape) for _ in range(config.layers)]
        self._values = [torch.zeros(shape) for _ in range(config.layers)]
        self._cosines, self._sines = rotary_tables(config, capacity)
        self._length = 0

    def feed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append tokens, and return the logits after the last of them.

        Args:
            tokens: Token ids ``[batch, count]``: the whole prompt in the first call, then one position.

        Returns:
            Logits ``[batch, vocabulary]``.
        """
        config, weights = self._config, self._weights
        count, begin = tokens.shape[1], self._length
        end = begin + count
        tables = self._cosines[begin:end], self._sines[begin:end]
        group = config.heads // config.kv_heads
        x = functional.embedding(tokens, weights[EMBEDDING])
        for layer in range(config.layers):
            prefix = f"transformer.layers.{layer}."
            query, key, value = project_qkv(x, weights, prefix, config)
            self._keys[layer][:, :, begin:end] = rotate(key, *tables)
            self._values[layer][:, :, begin:end] = value
            keys, values = self._keys[layer][:, :, :end], self._values[layer][:, :, :end]
            query = rotate(query, *tables)
            if count == 1:
                # Treat heads that share keys as positions of one query, which needs no copies and no mask.
                grouped = query.view(len(tokens), config.kv_heads, group, config.head_size)
                attended = functional.scaled_dot_product_attention(grouped, keys, values).view(query.shape)
            else:
                keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
                attended = functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
            x = finish_block(x, attended, weights, prefix, config)
        self._length = end
        return logits_of(x[:, -1:], weights, FINAL_NORM, config)[:, 0]


def generate(
    weights: Weights,
    config: ModelConfig,
    prompts: torch.Tensor,
    count: int,
    temperature: float,
    noise: Noise | None = None,
) -> torch.Tensor:
    """Continue prompts of equal length.

    Args:
        weights: The model's weights, float32.
        config: The model's shape.
        prompts: Token ids, int64 ``[batch, positions]``.
        count: Number of tokens to generate; sequences do not stop at the end token.
        temperature: Divisor of the logits; ``GREEDY`` chooses the most likely token and ignores ``noise``.
        noise: Noise that is added to the divided logits of each position.

    Returns:
        The generated token ids, int64 ``[batch, count]``.

    Raises:
        ValueError: Sampling was requested without noise.
    """
    if temperature != GREEDY and noise is None:
        raise ValueError(
            f"No noise was given for temperature {temperature}; sampling needs it; pass gumbel_noise()."
        )
    produced: list[torch.Tensor] = []
    with torch.inference_mode():
        model = CachedModel(weights, config, prompts.shape[0], prompts.shape[1] + count)
        logits = model.feed(prompts)
        for index in range(count):
            if temperature != GREEDY and noise is not None:
                logits = logits / temperature + noise(index)
            token = logits.argmax(dim=-1, keepdim=True)
            produced.append(token)
            if index + 1 < count:
                logits = model.feed(token)
    return torch.cat(produced, dim=1).clone()
