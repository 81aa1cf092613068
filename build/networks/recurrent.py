"""A gated delta network: a layer that keeps a state of fixed size instead of keys and values.

Its projections and its output are those of ``network.Layer``; here is what lies between.
"""

from __future__ import annotations

from dataclasses import dataclass

from build.checkpoints.tensor_file import Float32Array

CONVOLUTION_TAPS = 4


@dataclass(frozen=True)
class RecurrentSizes:
    """Sizes of the gated delta networks of a model.

    Attributes:
        num_key_heads: Heads of keys, and of queries.
        num_value_heads: Heads of values, a multiple; neighbours share a head of keys.
        key_size: Features of a key or query.
        value_size: Features of a value.
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int

    @property
    def value_channels(self) -> int:
        """Features of all values, and of the output."""
        return self.num_value_heads * self.value_size

    @property
    def channels(self) -> int:
        """Features of all queries, keys and values, which the convolution reads."""
        return 2 * self.num_key_heads * self.key_size + self.value_channels

    @property
    def width(self) -> int:
        """Features that the projections compute: channels, output gates, b and a."""
        return self.channels + self.value_channels + 2 * self.num_value_heads


@dataclass(frozen=True)
class RecurrentWeights:
    """Weights of one gated delta network beside its projections.

    Attributes:
        convolution: float32 [4, channels], for a token's own features last.
        rates: float32 [value heads], exp(A_log).
        biases: float32 [value heads], dt_bias.
        norm: float32 [value_size].
    """

    convolution: Float32Array
    rates: Float32Array
    biases: Float32Array
    norm: Float32Array
