"""A network between checkpoint and engine: its configuration, and its weights layer by layer.

Layers are produced one at a time, because a grown network of 500 million parameters takes gigabytes in
floating point, and half a gigabyte when quantized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from build.checkpoints.checkpoint import EMBEDDING, FINAL_NORM, LINEARS, LM_HEAD, Checkpoint
from build.checkpoints.stored_linear import read_linear
from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.config import NetworkConfig
from build.networks.linear import Linear


@dataclass(frozen=True)
class Layer:
    """Weights of one transformer layer, under TensorRT-LLM's names.

    Attributes:
        qkv: Queries, keys and values, stacked along the outputs.
        dense: Output of the attention.
        fc: Gate projection, which the activation follows.
        gate: Up projection.
        proj: Down projection.
        input_norm: Gain before the attention, float32 [hidden]; None for no norm.
        post_norm: Gain before the MLP, float32 [hidden].
        attention_output_norm: Gain behind the attention, before its output is added, float32 [hidden].
        mlp_output_norm: Gain behind the MLP, before its output is added, float32 [hidden].
        query_norm: Gain of the queries before rotation, float32 [head_size] or [heads * head_size].
        key_norm: Gain of the keys before rotation, float32 [head_size] or [kv_heads * head_size].
    """

    qkv: Linear
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

    def linears(self) -> tuple[Linear, ...]:
        """Return the five projections in the order of computation."""
        return (self.qkv, self.dense, self.fc, self.gate, self.proj)

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
    """

    config: NetworkConfig
    embedding: Tensor
    final_norm: Float32Array
    lm_head: Linear
    layer: Callable[[int], Layer]
    logit_rows: npt.NDArray[np.int32] | None = None

    @property
    def num_logits(self) -> int:
        """Return the number of logits per position."""
        return self.config.vocab_size if self.logit_rows is None else len(self.logit_rows)


def network_from_checkpoint(checkpoint: Checkpoint) -> Network:
    """Return the network as it is in a checkpoint, quantized or not."""
    config = checkpoint.config

    def layer(index: int) -> Layer:
        def linear(name: str) -> Linear:
            return read_linear(checkpoint.tensors, f"transformer.layers.{index}.{name}", config.quant_algo)

        qkv, dense, fc, gate, proj = (linear(name) for name in LINEARS)
        return Layer(
            qkv,
            dense,
            fc,
            gate,
            proj,
            input_norm=checkpoint.layer_tensor(index, "input_layernorm.weight").to_float32(),
            post_norm=checkpoint.layer_tensor(index, "post_layernorm.weight").to_float32(),
        )

    embedding = checkpoint.tensors[EMBEDDING]
    head = embedding if config.share_embedding_table else checkpoint.tensors[LM_HEAD]
    return Network(config, embedding, checkpoint.tensors[FINAL_NORM].to_float32(), Linear(head), layer)
