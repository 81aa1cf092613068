"""A network between checkpoint and engine: the settings that define it, and its weights layer by layer.

Layers are produced one at a time, because a grown network of 500 million parameters takes gigabytes in
floating point, and half a gigabyte when quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor
from build.networks.experts import ExpertSizes
from build.networks.linear import BY_OUTPUT, Linear, stack
from build.networks.recurrent import RecurrentSizes, RecurrentWeights

_NEVER = -1e4  # added to the logit of a row that the draft does not have


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
        is_recurrent: Whether the layer keeps a state instead of keys and values.
        has_experts: Whether a router chooses MLPs for each token.
    """

    rotary: Rotary | None
    window: int | None = None
    is_recurrent: bool = False
    has_experts: bool = False


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
        quant_bits: Bits of the integers in a quantized checkpoint, at most, or of a weight of a GGUF file in
            an engine, on average; None for floating point, FP8 included.
        group_size: Inputs that share a scale; 1 for formats without groups.
        rounds_activations: Whether the checkpoint is made for activations that are rounded to INT8 as they
            come.
        biases: Projections of a layer that have a bias, under the names of ``Layer``.
        activation: ``silu`` or ``gelu_tanh``, between gate and up projection, or ``clamped_swiglu``, which
            changes both.
        attention_scale: Factor of the attention scores.
        attention_softcap: c in c * tanh(score / c), of the scaled scores; None for unchanged scores. Only
            attention of our own caps them.
        has_sinks: Whether each attention layer has sinks. Only attention of our own computes them.
        embedding_multiplier: Factor of the embedding's output.
        residual_multiplier: Factor of what each block adds to the residual stream.
        logits_divisor: Divisor of the logits.
        logits_softcap: c in c * tanh(logits / c); None for unchanged logits.
        feature_layers: Layers of a target whose inputs, together its features, are a second output for a
            trained head; the number of layers stands for the last one's output. Empty for none.
        reads_features: Whether this is a trained head, which reads the features of these layers.
        head_rows: Rows of a trained head's output head; None for the whole vocabulary.
        gates_attention: Whether what attention returns is multiplied by the sigmoid of a projection.
        recurrence: Sizes of the recurrent layers; None for a network without.
        experts: Sizes of the experts; None for a network without.
        mask_token_id: Token that stands for one that is not known yet, if the network was trained to propose
            several tokens in one pass; None for others.
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
    quant_bits: float | None = None
    group_size: int = 1
    rounds_activations: bool = False
    biases: tuple[str, ...] = ()
    activation: str = "silu"
    attention_scale: float = field(kw_only=True)
    attention_softcap: float | None = None
    has_sinks: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    logits_softcap: float | None = None
    feature_layers: tuple[int, ...] = ()
    reads_features: bool = False
    head_rows: int | None = None
    gates_attention: bool = False
    recurrence: RecurrentSizes | None = None
    experts: ExpertSizes | None = None
    mask_token_id: int | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    @property
    def num_recurrent_layers(self) -> int:
        """Return the number of layers that keep a state instead of keys and values."""
        return sum(layer.is_recurrent for layer in self.layers)

    @property
    def own_attention_reason(self) -> str | None:
        """Return what only attention of our own computes; None if OpenVINO's computes this network."""
        if self.attention_softcap is not None:
            return f"attention scores that are capped (attn_logit_softcapping={self.attention_softcap:g})"
        if self.has_sinks:
            return "attention sinks"
        return None if self.recurrence is None else "recurrent layers beside the attention"


@dataclass(frozen=True)
class Layer:
    """Weights of one transformer layer, under TensorRT-LLM's names.

    Attributes:
        qkv: Queries, keys and values, stacked along the outputs as far as they have the same form. Behind
            them the gate of the attention; in a recurrent layer that of its output, then what decides how
            much of a value is written, and how much of the state decays.
        dense: Output of the attention.
        fc: Gate projection, which the activation follows; those of all experts along its outputs in a layer
            that has them.
        gate: Up projection, likewise.
        proj: Down projection, likewise.
        input_norm: Gain before the attention, float32 [hidden]; None for no norm.
        post_norm: Gain before the MLP, float32 [hidden].
        attention_output_norm: Gain behind the attention, before its output is added, float32 [hidden].
        mlp_output_norm: Gain behind the MLP, before its output is added, float32 [hidden].
        query_norm: Gain of the queries before rotation, float32 [head_size] or [heads * head_size].
        key_norm: Gain of the keys before rotation, float32 [head_size] or [kv_heads * head_size].
        sinks: A score for each query head that joins the softmax of every token, without a value, float32
            [heads]; None for a network without.
        recurrence: What only a recurrent layer has.
        router: Chooses experts, floats [experts, hidden], and has a last output for the share of ``shared``
            if there is one; None for a layer with one MLP.
        shared: Gate, up and down projection of an expert that computes all tokens; empty for none.
    """

    qkv: tuple[Linear, ...]
    dense: Linear
    fc: Linear
    gate: Linear
    proj: Linear
    input_norm: Float32Array | None = None
    post_norm: Float32Array | None = None
    attention_output_norm: Float32Array | None = None
    mlp_output_norm: Float32Array | None = None
    query_norm: Float32Array | None = None
    key_norm: Float32Array | None = None
    sinks: Float32Array | None = None
    recurrence: RecurrentWeights | None = None
    router: Linear | None = None
    shared: tuple[Linear, ...] = ()

    def with_linears(self, changed: Callable[[Linear], Linear]) -> Layer:
        """Return the layer with each projection but a router changed; those of ``qkv`` are stacked again."""
        others: dict[str, Any] = {
            name: changed(getattr(self, name)) for name in ("dense", "fc", "gate", "proj")
        }
        shared = tuple(map(changed, self.shared))
        return replace(self, qkv=stack(map(changed, self.qkv)), shared=shared, **others)

    def linears(self) -> tuple[Linear, ...]:
        """Return the projections but for a router, in the order of computation."""
        return (*self.qkv, self.dense, *self.mlp(), *self.shared)

    def mlp(self) -> tuple[Linear, Linear, Linear]:
        """Return gate, up and down projection of the MLP, or of all experts."""
        return self.fc, self.gate, self.proj

    def norms(self) -> tuple[Float32Array, ...]:
        """Return the gains that the layer has."""
        gains = (
            self.input_norm,
            self.query_norm,
            self.key_norm,
            self.attention_output_norm,
            self.post_norm,
            self.mlp_output_norm,
        )
        return tuple(gain for gain in gains if gain is not None)


@dataclass(frozen=True)
class Fusion:
    """How a trained head reads features of its target beside the embedding.

    In EAGLE-3 (arXiv:2503.01840) ``fc`` projects the features, and attention reads both states. In an MTP
    module ``fc`` projects both normed states to one, which an ordinary layer reads.

    Attributes:
        fc: Projection [hidden, layers * hidden], or [hidden, 2 * hidden] of an MTP module.
        hidden_norm: Gain of its result, or of the head's own hidden state, float32 [hidden]; in an MTP module
            of either state.
        norms_residual: Whether the residual stream begins behind this norm, not before it.
        embedding_norm: Gain of the embedding, float32 [hidden]; None for EAGLE-3.
        features_norm: Gain of the target's final norm, which its features pass, float32 [hidden]; likewise.
    """

    fc: Linear
    hidden_norm: Float32Array
    norms_residual: bool = False
    embedding_norm: Float32Array | None = None
    features_norm: Float32Array | None = None


@dataclass(frozen=True)
class Network:
    """Configuration and weights that an engine is compiled from.

    Attributes:
        config: Shapes and settings, after growth.
        embedding: [vocab, hidden], BF16, F16 or F32.
        final_norm: float32 [hidden].
        lm_head: [vocab, hidden]; the embedding itself if the checkpoint ties them.
        layer: Return layer i; called once per layer, in order.
        logit_rows: int32 [n], the row of ``lm_head`` for each logit of the engine, -1 for a logit of minus
            infinity; None for the rows of ``lm_head`` as they are.
        fusion: How a trained head reads features; None for other networks.
    """

    config: NetworkConfig
    embedding: Tensor
    final_norm: Float32Array
    lm_head: Linear
    layer: Callable[[int], Layer]
    logit_rows: npt.NDArray[np.int32] | None = None
    fusion: Fusion | None = None

    @property
    def num_logits(self) -> int:
        """Return the number of logits per position."""
        return self.config.vocab_size if self.logit_rows is None else len(self.logit_rows)


def fit_vocabulary(network: Network, vocab_size: int) -> Network:
    """Return the network with rows cut off, or with new rows whose tokens it never proposes.

    Draft and target with one tokenizer may have embeddings of different sizes, because trainers pad them
    differently: Qwen2.5 has 151,936 rows in small models and 152,064 in large ones. No token has these rows.

    Args:
        network: Its embedding is not quantized.
        vocab_size: Number of rows to reach.
    """
    missing = vocab_size - network.config.vocab_size
    if missing == 0:
        return network
    head = network.lm_head
    if missing > 0:
        bias = np.zeros(network.config.vocab_size, np.float32) if head.bias is None else head.bias
        head = replace(head, bias=np.append(bias, np.full(missing, _NEVER, np.float32)))
    elif head.bias is not None:
        head = replace(head, bias=head.bias[:vocab_size])
    embedding = _with_rows(network.embedding, vocab_size)
    is_tied = network.lm_head.weight is network.embedding
    others: dict[str, Any] = {
        name: _resized_per_row(getattr(head, name), vocab_size) for name in BY_OUTPUT if name != "bias"
    }
    weight = embedding if is_tied else _with_rows(head.weight, vocab_size)
    head, config = replace(head, weight=weight, **others), replace(network.config, vocab_size=vocab_size)
    return replace(network, config=config, embedding=embedding, lm_head=head)


def shorten_head(network: Network, num_rows: int, others: Iterable[int]) -> Network:
    """Return the network with logits of its first tokens and some others; all others are never proposed.

    Tokenizers number frequent tokens first. A draft need not read the rest of its output head, which may be
    half of its weights (Zhao et al. 2025, FR-Spec, arXiv 2502.14856).

    Args:
        network: With a logit for each token of the target.
        num_rows: Number of first tokens, of its own tokenizer where that is another one.
        others: Further tokens of the target: special ones, which have the highest numbers. Those without a
            logit are left out.
    """
    vocab_size = network.config.vocab_size
    rows_of = np.arange(vocab_size) if network.logit_rows is None else network.logit_rows
    further = rows_of[[token for token in others if token < len(rows_of)]]
    kept = np.union1d(np.arange(min(num_rows, vocab_size)), further[further >= 0])
    if len(kept) == vocab_size:
        return network
    rows = np.full(vocab_size, -1, np.int32)
    rows[kept] = np.arange(len(kept))
    if network.logit_rows is not None:
        rows = np.where(network.logit_rows < 0, -1, rows[network.logit_rows]).astype(np.int32)
    return replace(network, lm_head=network.lm_head.rows(kept), logit_rows=rows)


def _with_rows(table: Tensor, rows: int) -> Tensor:
    data = _resized(table.data, rows)
    return Tensor(table.dtype, data.shape, data)


def _resized_per_row(values: AnyArray | None, rows: int) -> AnyArray | None:
    """Return scales or zero points with other rows; a single row belongs to the whole weight."""
    return values if values is None or len(values) == 1 else _resized(values, rows)


def _resized(values: AnyArray, rows: int) -> AnyArray:
    if len(values) >= rows:
        return values[:rows]
    return np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])
