"""What a pair needs of each GPU's memory, and how the rest is shared by the two KV caches.

Weights and KV caches follow from the numbers in ``config.json``. Workspace is an **estimate** that was
not measured on a GPU:

- activations: ``max_num_tokens`` x 2 bytes x (4 hidden + (heads + 2 KV heads) x head size / TP
  + 3 intermediate / TP), the tensors that live at once in one layer;
- logits: two buffers of ``max_batch_size`` x (draft tokens + 1) rows x padded vocabulary x 4 bytes;
- 1.5 GiB for a rank's process: CUDA context, cuBLAS and NCCL workspaces.

A request stands in both caches with the same tokens, so both are planned for the same number of tokens.
An engine takes its fraction of what is free when it has loaded (TensorRT-LLM, ``kv_cache_config``; reading),
so the fractions below hold for the target loaded first. ``max_tokens_in_paged_kv_cache`` is the lesser
of both limits and holds in any order: set both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from build.model_config import ModelConfig
from build.tensorrt_llm.pair import Pair, Side
from build.tensorrt_llm.ranks import gpu_device_ids

PROCESS_BYTES = 3 << 29
# Left free for what no formula knows: fragmentation, the driver, another process's CUDA context.
RESERVE = 0.03

_WEIGHT_BYTES = {
    None: 2.0,
    "FP8": 1.0,
    "W8A8_SQ_PER_CHANNEL": 1.0,
    "W8A16": 1.0,
    "W4A16_AWQ": 0.5 + 2 / 128,  # a 16-bit scale for each group of 128
    "W4A8_AWQ": 0.5 + 2 / 128,
}
_KV_BYTES = {None: 2, "FP8": 1, "INT8": 1}


@dataclass(frozen=True)
class EngineMemory:
    """One engine's share of each of its GPUs.

    Attributes:
        role: ``draft`` or ``target``.
        devices: GPUs of a node.
        weight_bytes: Weights of the largest rank.
        workspace_bytes: Estimate; see the module.
        kv_bytes_per_token: Keys and values of one token on one rank.
        max_tokens_in_paged_kv_cache: Tokens that its cache holds.
        kv_cache_free_gpu_mem_fraction: Share of what is free when it has loaded, target first.
    """

    role: str
    devices: tuple[int, ...]
    weight_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    max_tokens_in_paged_kv_cache: int
    kv_cache_free_gpu_mem_fraction: float

    @property
    def static_bytes(self) -> int:
        """Everything but the cache."""
        return self.weight_bytes + self.workspace_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Both engines on the GPUs of a node.

    Attributes:
        gpu: Name of the GPU.
        usable_bytes: Its memory less the reserve.
        target: Loaded first.
        draft: Loaded second.
        tokens_of_a_request: ``max_seq_len`` and a round's draft tokens, in whole blocks.
    """

    gpu: str
    usable_bytes: int
    target: EngineMemory
    draft: EngineMemory
    tokens_of_a_request: int

    @property
    def tokens(self) -> int:
        """Tokens that stand in both caches at once."""
        return min(self.target.max_tokens_in_paged_kv_cache, self.draft.max_tokens_in_paged_kv_cache)

    @property
    def fits(self) -> bool:
        """Whether one request of full length fits."""
        return self.tokens >= self.tokens_of_a_request

    @property
    def fullest_device(self) -> int:
        """The GPU with the least room for caches."""
        return max(self.target.devices + self.draft.devices, key=self.static_bytes_on)

    def static_bytes_on(self, device: int) -> int:
        """What stands on a GPU before any cache does."""
        return sum(engine.static_bytes for engine in (self.target, self.draft) if device in engine.devices)


def head_rows(config: ModelConfig) -> int:
    """Rows of the output head, which tensor parallelism splits evenly."""
    return math.ceil(config.vocab_size / config.tp_size) * config.tp_size


def _layers(config: ModelConfig) -> int:
    return math.ceil(config.num_layers / config.pp_size)


def _kv_heads(config: ModelConfig) -> int:
    """Of one rank; a head that has to be on more ranks than one is copied."""
    return math.ceil(config.num_kv_heads / config.tp_size)


def weight_bytes(config: ModelConfig) -> int:
    """Weights of the largest rank, bytes.

    The embedding table counts whole on each rank, and a tied head twice, because exporters write it twice.
    """
    hidden, tp = config.hidden_size, config.tp_size
    heads = config.num_heads * config.head_size / tp
    linears = hidden * (2 * heads + 2 * _kv_heads(config) * config.head_size)
    linears += 3 * hidden * config.intermediate_size / tp
    layers = _layers(config) * (linears * _WEIGHT_BYTES.get(config.quant_algo, 2.0) + 2 * 2 * hidden)
    embedding = 2 * config.vocab_size * hidden
    head = 2 * head_rows(config) // tp * hidden
    # With pipeline stages the table is on the first and the head on the last.
    ends = embedding + head if config.pp_size == 1 else max(embedding, head)
    return round(layers + ends)


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Keys and values of one token on one rank, bytes."""
    elements = 2 * _layers(config) * _kv_heads(config) * config.head_size
    return elements * _KV_BYTES.get(config.kv_cache_quant_algo, 2)


def workspace_bytes(pair: Pair, side: Side) -> int:
    """Activations, logits and process of one rank, bytes; an estimate."""
    config, serving = side.config, pair.recipe.serving
    heads = config.num_heads + 2 * config.num_kv_heads
    width = 4 * config.hidden_size
    width += (heads * config.head_size + 3 * config.intermediate_size) // config.tp_size
    rows = serving.max_batch_size * (pair.max_draft_len(side) + 1)
    logits = 2 * rows * head_rows(config) * 4
    return pair.max_num_tokens * 2 * width + logits + PROCESS_BYTES


def plan_memory(pair: Pair) -> MemoryPlan:
    """Share the memory of the recipe's GPU between the engines of a pair.

    A fraction that the recipe gives is taken; otherwise both caches get the same number of tokens.
    """
    total = pair.gpu.memory_bytes
    usable = int(total * (1 - RESERVE))
    block = pair.target.engine.tensorrt_llm.tokens_per_block
    target = _Share(pair, pair.target)
    draft = _Share(pair, pair.draft)
    room = min(
        (usable - sum(share.static for share in present)) // sum(share.per_token for share in present)
        for device in {*target.devices, *draft.devices}
        if (present := [share for share in (target, draft) if device in share.devices])
    )
    target_tokens = target.tokens_of(total - target.static) if target.fraction else room
    # What the target leaves on the GPU that both are on; all of it where the draft is alone.
    shared = bool(set(target.devices) & set(draft.devices))
    before = target.static + max(0, target_tokens) * target.per_token if shared else 0
    free = total - before - draft.static
    most = (usable - before - draft.static) // draft.per_token
    draft_tokens = draft.tokens_of(free) if draft.fraction else min(most, target_tokens)
    if draft_tokens > most:  # the recipe's two fractions overlap: say what is really there
        draft_tokens = most
    request = pair.recipe.serving.max_seq_len + pair.recipe.serving.max_draft_len
    return MemoryPlan(
        gpu=pair.recipe.tensorrt_llm.gpu,
        usable_bytes=usable,
        target=target.memory(target_tokens // block * block, total - target.static),
        draft=draft.memory(draft_tokens // block * block, free),
        tokens_of_a_request=math.ceil(request / block) * block,
    )


class _Share:
    """One engine while the plan is being made."""

    def __init__(self, pair: Pair, side: Side) -> None:
        self.role = side.role
        self.devices = gpu_device_ids(pair.recipe, side.role)
        self.weights = weight_bytes(side.config)
        self.workspace = workspace_bytes(pair, side)
        self.static = self.weights + self.workspace
        self.per_token = kv_bytes_per_token(side.config)
        self.fraction = side.engine.tensorrt_llm.kv_cache_free_gpu_mem_fraction

    def tokens_of(self, free: int) -> int:
        return int(free * (self.fraction or 0.0)) // self.per_token

    def memory(self, tokens: int, free: int) -> EngineMemory:
        tokens = max(0, tokens)
        # Rounded up, so that the token limit is the sharper one; the reserve takes the difference.
        fraction = min(1.0, math.ceil(1000 * tokens * self.per_token / free) / 1000) if free > 0 else 0.0
        return EngineMemory(
            role=self.role,
            devices=self.devices,
            weight_bytes=self.weights,
            workspace_bytes=self.workspace,
            kv_bytes_per_token=self.per_token,
            max_tokens_in_paged_kv_cache=tokens,
            kv_cache_free_gpu_mem_fraction=self.fraction or fraction,
        )
