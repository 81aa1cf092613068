"""Plan each GPU's memory for a pair: weights, workspace, and how the two KV caches share the rest.

The sizes of weights and KV caches follow from ``config.json``. Workspace is an **estimate** that has not been
measured on a GPU:

- activations: ``max_num_tokens`` x 2 bytes x (4 hidden + (heads + 2 KV heads) x head size / TP
  + 3 intermediate / TP), the tensors of one layer that exist at the same time;
- logits, in rows of the padded vocabulary x 4 bytes: for each request ``DECODER_ROWS``; for each token of a
  step of the target ``VERIFICATION_ROWS``; for each request of the draft ``GATHERED_ROWS``;
- 1.5 GiB for a rank's process: CUDA context, cuBLAS and NCCL workspaces.

A request has the same tokens in both caches, so both are planned for the same number of tokens. An engine
takes its fraction of the memory that is free after it has loaded (TensorRT-LLM, ``kv_cache_config``; from
reading the source), so the fractions assume that the target is loaded first. ``max_tokens_in_paged_kv_cache``
is slightly lower and independent of the order; both limits are set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from build.tensorrt_llm.command import GATHERS_LOGITS, TOKENS_PER_BLOCK
from build.tensorrt_llm.model_config import ModelConfig
from build.tensorrt_llm.pair import Pair, Side

PROCESS_BYTES = 3 << 29

# Bias, two copies of the logits, the chosen ids, a mask, and the workspace of top-k and top-p sampling
# (cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp @1d263f15, allocateBuffer; the last is an estimate).
DECODER_ROWS = 8
# The engine's logits, and draftLogits, draftProbs and targetProbs of the decoder
# (cpp/tensorrt_llm/runtime/decoderState.cpp @7ed07f06, reshapeSpeculativeDecodingBuffers).
VERIFICATION_ROWS = 4
# With --gather_generation_logits the logits of so many steps are kept: GenerationLogitsCache::kCACHE_LENGTH
# (cpp/include/tensorrt_llm/batch_manager/runtimeBuffers.h; cpp/.../runtimeBuffers.cpp @092a5a15, create).
GATHERED_ROWS = 8

# Left free for fragmentation, the driver and CUDA contexts of other processes.
RESERVE = 0.03

LARGEST_FRACTION = 0.999  # KvCacheConfig asserts that it is below 1

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
        devices: GPUs that it runs on.
        weight_bytes: Size of the weights of the largest rank.
        workspace_bytes: Estimated workspace; see the module.
        kv_bytes_per_token: Size of the keys and values of one token on one rank.
        max_tokens_in_paged_kv_cache: Capacity of its KV cache, tokens.
        kv_cache_free_gpu_mem_fraction: Fraction of the memory that is free after it has loaded, target first.
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
        """Return the size of everything but the KV cache."""
        return self.weight_bytes + self.workspace_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of both engines on the GPUs of a machine.

    Attributes:
        gpu: Name of the GPU.
        usable_bytes: Its memory without the reserve.
        target: Memory of the target, which is loaded first.
        draft: Memory of the draft, which is loaded second.
        tokens_of_a_request: ``max_seq_len`` plus the draft tokens of a round, rounded up to whole blocks.
    """

    gpu: str
    usable_bytes: int
    target: EngineMemory
    draft: EngineMemory
    tokens_of_a_request: int

    @property
    def tokens(self) -> int:
        """Return how many tokens fit into both KV caches."""
        return min(self.target.max_tokens_in_paged_kv_cache, self.draft.max_tokens_in_paged_kv_cache)

    @property
    def fits(self) -> bool:
        """Return whether one request of full length fits."""
        return self.tokens >= self.tokens_of_a_request

    @property
    def fullest_device(self) -> int:
        """Return the GPU with the least memory for KV caches."""
        return max(self.target.devices + self.draft.devices, key=self.static_bytes_on)

    def static_bytes_on(self, device: int) -> int:
        """Return the memory in use on a GPU without KV caches."""
        return sum(engine.static_bytes for engine in (self.target, self.draft) if device in engine.devices)


def head_rows(config: ModelConfig) -> int:
    """Return the rows of the output head, padded so that tensor parallelism splits them evenly."""
    return math.ceil(config.vocab_size / config.tp_size) * config.tp_size


def _layers(config: ModelConfig) -> int:
    return math.ceil(config.num_layers / config.pp_size)


def _kv_heads(config: ModelConfig) -> int:
    """Return the KV heads of one rank; with more ranks than heads, heads are copied."""
    return math.ceil(config.num_kv_heads / config.tp_size)


def weight_bytes(config: ModelConfig) -> int:
    """Return the size of the weights of the largest rank, bytes.

    A tied output head counts again, because exporters write it twice.
    """
    hidden, tp = config.hidden_size, config.tp_size
    heads = config.num_heads * config.head_size / tp
    linears = hidden * (2 * heads + 2 * _kv_heads(config) * config.head_size)
    linears += 3 * hidden * config.intermediate_size / tp
    layers = _layers(config) * (linears * _WEIGHT_BYTES.get(config.quant_algo, 2.0) + 2 * 2 * hidden)
    head = 2 * head_rows(config) // tp * hidden
    embedding = head if config.parallel_embedding else 2 * config.vocab_size * hidden
    # With pipeline parallelism, the table is on the first stage and the head on the last.
    ends = embedding + head if config.pp_size == 1 else max(embedding, head)
    return round(layers + ends)


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Return the size of the keys and values of one token on one rank, bytes."""
    elements = 2 * _layers(config) * _kv_heads(config) * config.head_size
    return elements * _KV_BYTES.get(config.kv_cache_quant_algo, 2)


def workspace_bytes(pair: Pair, side: Side) -> int:
    """Estimate the memory for activations, logits and the process of one rank, bytes."""
    config, serving = side.config, pair.recipe.serving
    heads = config.num_heads + 2 * config.num_kv_heads
    width = 4 * config.hidden_size
    width += (heads * config.head_size + 3 * config.intermediate_size) // config.tp_size
    rows = DECODER_ROWS + (GATHERED_ROWS if GATHERS_LOGITS[side.role] else 0)
    if side.role == "target":
        rows += VERIFICATION_ROWS * (serving.max_draft_len + 1)
    logits = serving.max_batch_size * rows * head_rows(config) * 4
    return pair.max_num_tokens * 2 * width + logits + PROCESS_BYTES


def plan_memory(pair: Pair) -> MemoryPlan:
    """Share the memory of the recipe's GPU between the engines of a pair.

    Fractions in the recipe are used as they are; otherwise both caches get the same number of tokens.
    """
    total = pair.gpu.memory_bytes
    usable = int(total * (1 - RESERVE))
    block = TOKENS_PER_BLOCK
    target = _Share(pair, pair.target)
    draft = _Share(pair, pair.draft)
    room = min(
        (usable - sum(share.static for share in present)) // sum(share.per_token for share in present)
        for device in {*target.devices, *draft.devices}
        if (present := [share for share in (target, draft) if device in share.devices])
    )
    target_tokens = target.tokens_of(total - target.static) if target.fraction else room
    # The draft gets what the target leaves on shared GPUs, or all memory of its own GPUs.
    shared = bool(set(target.devices) & set(draft.devices))
    before = target.static + max(0, target_tokens) * target.per_token if shared else 0
    free = total - before - draft.static
    most = (usable - before - draft.static) // draft.per_token
    draft_tokens = draft.tokens_of(free) if draft.fraction else min(most, target_tokens)
    if draft_tokens > most:  # the two fractions in the recipe overlap
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
    """Inputs of the plan for one engine."""

    def __init__(self, pair: Pair, side: Side) -> None:
        self.role = side.role
        self.devices = side.engine.tensorrt_llm.gpus
        self.weights = weight_bytes(side.config)
        self.workspace = workspace_bytes(pair, side)
        self.static = self.weights + self.workspace
        self.per_token = kv_bytes_per_token(side.config)
        self.fraction = side.engine.tensorrt_llm.kv_cache_free_gpu_mem_fraction

    def tokens_of(self, free: int) -> int:
        return int(free * (self.fraction or 0.0)) // self.per_token

    def memory(self, tokens: int, free: int) -> EngineMemory:
        tokens = max(0, tokens)
        # Rounded up, so that the limit in tokens applies first; the reserve covers the difference.
        share = math.ceil(1000 * tokens * self.per_token / free) / 1000 if free > 0 else 0.0
        return EngineMemory(
            role=self.role,
            devices=self.devices,
            weight_bytes=self.weights,
            workspace_bytes=self.workspace,
            kv_bytes_per_token=self.per_token,
            max_tokens_in_paged_kv_cache=tokens,
            kv_cache_free_gpu_mem_fraction=self.fraction or min(LARGEST_FRACTION, share),
        )
