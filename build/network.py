"""A network on its way from checkpoint to engine: shapes, and weights that come layer by layer.

Layers are produced one at a time, because a grown network of 500 million parameters would take
gigabytes in floating point while its quantized form takes half of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from build.checkpoint import EMBEDDING, FINAL_NORM, LINEARS, LM_HEAD, Checkpoint
from build.checkpoint_config import CheckpointConfig
from build.linear import Linear
from build.stored_linear import read_linear
from build.tensor_file import Float32Array, Tensor


@dataclass(frozen=True)
class Layer:
    """Weights of one transformer layer; norms are float32 [hidden]."""

    input_norm: Float32Array
    post_norm: Float32Array
    qkv: Linear
    dense: Linear
    fc: Linear
    gate: Linear
    proj: Linear

    def linears(self) -> tuple[Linear, ...]:
        """The five projections, in the order in which they are computed."""
        return (self.qkv, self.dense, self.fc, self.gate, self.proj)


@dataclass(frozen=True)
class Network:
    """Everything an engine is compiled from.

    Attributes:
        config: Shapes and settings; after growth those of the grown network.
        embedding: [vocab, hidden], BF16, F16 or F32.
        final_norm: float32 [hidden].
        lm_head: [vocab, hidden]; the embedding itself where the checkpoint ties them.
        layer: Gives layer i; called once per layer, in order.
    """

    config: CheckpointConfig
    embedding: Tensor
    final_norm: Float32Array
    lm_head: Linear
    layer: Callable[[int], Layer]


def network_from_checkpoint(checkpoint: Checkpoint) -> Network:
    """The network exactly as the checkpoint holds it, quantized or not."""
    config = checkpoint.config

    def layer(index: int) -> Layer:
        def linear(name: str) -> Linear:
            return read_linear(checkpoint.tensors, f"transformer.layers.{index}.{name}", config.quant_algo)

        qkv, dense, fc, gate, proj = (linear(name) for name in LINEARS)
        return Layer(
            checkpoint.layer_tensor(index, "input_layernorm.weight").to_float32(),
            checkpoint.layer_tensor(index, "post_layernorm.weight").to_float32(),
            qkv,
            dense,
            fc,
            gate,
            proj,
        )

    embedding = checkpoint.tensors[EMBEDDING]
    head = embedding if config.share_embedding_table else checkpoint.tensors[LM_HEAD]
    return Network(config, embedding, checkpoint.tensors[FINAL_NORM].to_float32(), Linear(head), layer)
