"""The settings that define a network, whatever checkpoint they were read from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RotaryScaling:
    """Scaling of the rotary frequencies.

    Attributes:
        kind: ``llama3``, ``linear``, ``longrope`` or ``yarn``.
        factor: Ratio of the new context length to the original one.
        low_freq_factor: Wavelengths above original length / this are scaled by ``factor`` (llama3; the
            ``beta_slow`` of yarn).
        high_freq_factor: Wavelengths below original length / this are not scaled (llama3; the ``beta_fast``
            of yarn).
        original_max_position_embeddings: Original context length, tokens (all but linear).
        divisors: Divisor of each frequency (longrope).
        magnitude: Factor of sine and cosine.
        truncate: Whether the borders of interpolation are rounded to whole frequencies (yarn).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 1
    divisors: tuple[float, ...] = ()
    magnitude: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding.

    Attributes:
        base: Base of the frequencies (theta).
        size: Coordinates of a head that are rotated, counted from the first; the others stay as they are.
        scaling: Scaling for contexts longer than those of the training, or None.
    """

    base: float
    size: int
    scaling: RotaryScaling | None = None


@dataclass(frozen=True)
class LayerConfig:
    """Settings that may differ from layer to layer.

    Attributes:
        rotary: Position embedding of queries and keys; None if the layer does not encode positions.
        window: Number of latest positions that a token attends to, its own included; None for all.
    """

    rotary: Rotary | None
    window: int | None = None


@dataclass(frozen=True)
class NetworkConfig:
    """A decoder: sizes, and the features in which families of networks differ.

    Attributes:
        architecture: Class name in transformers, such as ``LlamaForCausalLM``.
        dtype: ``bfloat16``, ``float16`` or ``float32``: type of the weights that are not quantized.
        layers: One entry per layer.
        max_position_embeddings: Longest context that the network was trained for, tokens.
        share_embedding_table: Whether the output head is the embedding.
        quant_algo: Stored form of the projections, under TensorRT-LLM's name or that of ``quant_method`` in
            Hugging Face's; None for floating point.
        quant_bits: Bits of the integers in a quantized Hugging Face checkpoint, at most; None for floating
            point, FP8 included.
        group_size: Inputs that share a scale; 1 for formats without groups.
        rounds_activations: Whether the checkpoint is made for activations that are rounded to INT8 as they
            come.
        biases: Projections of a layer that have a bias, under the names of ``Layer``.
        activation: ``silu`` or ``gelu_tanh``, between gate and up projection.
        attention_scale: Factor of the attention scores.
        attention_softcap: c in c * tanh(score / c), of the scaled scores; None for unchanged scores. Only
            attention of our own caps them.
        embedding_multiplier: Factor of the embedding's output.
        residual_multiplier: Factor of what each block adds to the residual stream.
        logits_divisor: Divisor of the logits.
        logits_softcap: c in c * tanh(logits / c); None for unchanged logits.
    """

    architecture: str
    dtype: str
    num_attention_heads: int
    num_key_value_heads: int
    hidden_size: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    layers: tuple[LayerConfig, ...]
    share_embedding_table: bool
    quant_algo: str | None = None
    quant_bits: int | None = None
    group_size: int = 1
    rounds_activations: bool = False
    biases: tuple[str, ...] = ()
    activation: str = "silu"
    attention_scale: float = field(kw_only=True)
    attention_softcap: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    logits_softcap: float | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Return the number of layers."""
        return len(self.layers)
