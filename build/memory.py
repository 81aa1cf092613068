"""Plan the memory of an embedded server: weights by the sizes of the networks, KV caches with the rest.

The process of a pair holds both engines, each with one KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build.hugging_face.mtp import is_mtp
from build.networks.network import LayerConfig, NetworkConfig
from build.openvino.own_recurrence import recurrence_entries
from build.recipe import EngineRecipe, Serving
from pipelines.engine_memory import MAX_LOGGED_ROWS, block_bytes, read_sizes, states_bytes
from pipelines.errors import RecipeError

BLOCK_TOKENS = 32
"""Tokens in a block of the KV cache."""

SERVER_BYTES = 1_500_000_000
"""Memory of a server besides weights and KV caches: Triton, gateway, front door, the Python processes of the
models, and the runtime's buffers.

With a small tokenizer it is below 1 GB. But the front door, ``router`` and ``ensemble_steps`` each hold the
tokenizer, and take some 250 MB each with Gemma's 262,144 tokens.
"""

SHARE_USED = 0.8
"""Planned share of the free memory: the page cache and other programs need some."""

_SCALE_BYTES = 4
_FLOAT_BITS = 32  # the runtime expands all weights but integers
# With scales, made of floating point; other quantizations keep what the checkpoint has.
_BITS = {"int8": 8, "int4": 4.625}
_GB = 1e9


@dataclass(frozen=True)
class EngineMemory:
    """Memory of one engine in one process.

    Attributes:
        weights: Bytes of the weights as the kernels read them, and of the embedding.
        block: Bytes of one block of the KV cache, all layers together.
        slot: Bytes of the recurrent states of a request; 0 for a network without.
        num_blocks: Blocks that the recipe asks for; None to choose them by the memory.
    """

    weights: float
    block: int
    slot: int
    num_blocks: int | None

    @classmethod
    def of_network(cls, config: NetworkConfig, engine: EngineRecipe) -> EngineMemory:
        """Estimate the memory of an engine that is not built yet.

        Args:
            config: Settings of its network, after growth.
            engine: Its section of the recipe.
        """
        block = block_bytes(
            BLOCK_TOKENS,
            config.num_hidden_layers - config.num_recurrent_layers,
            config.num_key_value_heads,
            config.head_size,
            engine.kv_cache.dtype,
        )
        entries = recurrence_entries(config)
        slot = entries.get("state_bytes", 0) + MAX_LOGGED_ROWS * entries.get("log_bytes", 0)
        return cls(weight_bytes(config, engine), block, slot, engine.kv_cache.num_blocks)

    @classmethod
    def of_engine(cls, directory: Path, num_blocks: int | None) -> EngineMemory:
        """Read the memory of an engine that is built.

        Args:
            directory: Directory of the engine.
            num_blocks: See the attribute.

        Raises:
            EngineLoadError: See ``pipelines.engine_memory.read_sizes``.
        """
        return cls(*read_sizes(directory), num_blocks)


NO_ENGINE = EngineMemory(weights=0, block=0, slot=0, num_blocks=1)
"""Memory of the draft of a pair without one."""


@dataclass(frozen=True)
class MemoryPlan:
    """How a server will use the memory.

    Attributes:
        free: Free memory now, bytes.
        target: Memory of the target.
        draft: Memory of the draft.
        num_blocks: Blocks of each KV cache, by role.
        states: Bytes of the target's recurrent states.
        process_bytes: Bytes of all processes without engines.
    """

    free: float
    target: EngineMemory
    draft: EngineMemory
    num_blocks: dict[str, int]
    states: int
    process_bytes: int

    @property
    def caches(self) -> int:
        """Return the bytes of all KV caches."""
        target, draft = self.num_blocks["target"], self.num_blocks["draft"]
        return target * self.target.block + draft * self.draft.block

    def lines(self) -> Iterator[str]:
        """Return the plan as text."""
        tokens = {role: f"{(blocks - 1) * BLOCK_TOKENS:,}" for role, blocks in self.num_blocks.items()}
        yield f"memory: {self.free / _GB:.1f} GB free, of which at most {SHARE_USED:.0%} is planned"
        weights = self.target.weights, self.draft.weights
        yield f"  weights, target {weights[0] / _GB:.2f} GB, draft {weights[1] / _GB:.2f} GB"
        yield (
            f"  KV caches, target {tokens['target']} tokens, draft {tokens['draft']} tokens: "
            f"{self.caches / _GB:.2f} GB"
        )
        if self.states:
            yield f"  recurrent states of the target: {self.states / _GB:.2f} GB"
        yield f"  processes: {self.process_bytes / _GB:.1f} GB"


def num_parameters(config: NetworkConfig) -> tuple[int, int]:
    """Return the weights of all projections, and of embedding or output head."""
    attention = config.num_attention_heads * config.head_size
    values = config.num_key_value_heads * config.head_size
    layer = config.hidden_size * (2 * attention + 2 * values)
    if config.gates_attention:
        layer += config.hidden_size * attention
    if config.reads_features:  # a second state beside the embedding, and the projection of the features
        layer += len(config.feature_layers) * config.hidden_size**2
        layer += config.hidden_size * (config.hidden_size if is_mtp(config) else attention + 2 * values)
    table = config.vocab_size * config.hidden_size
    projections = layer * (config.num_hidden_layers - config.num_recurrent_layers)
    if (sizes := config.recurrence) is not None:
        recurrent = (sizes.width + sizes.value_channels) * config.hidden_size
        projections += recurrent * config.num_recurrent_layers
    return projections + sum(_mlp_parameters(config, each) for each in config.layers), table


def _mlp_parameters(config: NetworkConfig, layer: LayerConfig) -> int:
    """Return the weights of a layer's MLP, or of all its experts without the router."""
    neurons = config.intermediate_size
    if layer.has_experts and config.experts is not None:
        neurons = config.experts.count * config.experts.intermediate_size + config.experts.shared_size
    return 3 * config.hidden_size * neurons


def weight_bytes(config: NetworkConfig, engine: EngineRecipe) -> float:
    """Return the bytes of an engine's weights in memory."""
    projections, table = num_parameters(config)
    head = _BITS.get(engine.lm_head, _FLOAT_BITS) / 8
    embedding = 4 if config.dtype == "float32" else 2
    if config.share_embedding_table and head == 4:
        embedding = 0  # one table for both
    head *= min(1.0, (engine.lm_head_rows or config.head_rows or config.vocab_size) / config.vocab_size)
    return projections * _projection_bytes(config, engine.rounding) + table * (embedding + head)


def _projection_bytes(config: NetworkConfig, quantization: str) -> float:
    """Return the bytes of a weight with its share of scale and zero point."""
    bits, group = _BITS.get(quantization, _FLOAT_BITS), 1
    if quantization != "none" and config.quant_bits is not None and config.quant_bits <= bits:
        bits, group = config.quant_bits, config.group_size
    return bits / 8 + ((_SCALE_BYTES + bits / 8) / group if group > 1 else 0.0)


def plan_memory(
    target: EngineMemory,
    draft: EngineMemory,
    serving: Serving,
    free: float,
) -> MemoryPlan:
    """Choose the blocks of the KV caches that the recipe leaves open.

    They hold ``max_batch_size`` requests of ``max_seq_len`` tokens, or fewer where the memory does: at least
    two, since the loop and requests to the target alone have half of the blocks each when both need them.

    Args:
        target: Memory of the target.
        draft: Memory of the draft.
        serving: Limits of the server.
        free: Free memory, bytes.

    Raises:
        RecipeError: The memory does not hold the weights and one request, or the blocks of the recipe.
    """
    per_request = -(-serving.max_seq_len // BLOCK_TOKENS)
    least = 2 * per_request + 1  # one block is reserved
    most = max(least, serving.max_batch_size * per_request + 1)
    states = states_bytes(target.slot, serving.max_batch_size)
    fixed, per_block = target.weights + draft.weights + states + SERVER_BYTES, 0
    for engine in (target, draft):
        if engine.num_blocks is None:
            per_block += engine.block
        else:
            fixed += engine.block * engine.num_blocks
    left = SHARE_USED * free - fixed
    blocks = min(most, int(left // per_block)) if per_block else least
    if left < 0 or blocks < least:
        needed = (fixed + least * per_block) / SHARE_USED
        raise RecipeError(
            f"the memory does not hold this pair: {free / _GB:.1f} GB free, and {needed / _GB:.1f} GB "
            f"needed, with KV caches for two requests of {serving.max_seq_len} tokens",
            "stop other servers (draftproof stop), lower max_seq_len or num_blocks, choose quantization "
            "int4, or use a machine with more memory",
        )
    chosen = {"target": target.num_blocks or blocks, "draft": draft.num_blocks or blocks}
    return MemoryPlan(free, target, draft, chosen, states, SERVER_BYTES)
