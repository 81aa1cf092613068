"""Rules on what fits: ranks on GPUs, positions into the network's context, both engines into memory."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.memory_plan import plan_memory
from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.rules.rule import Violation, rule

_AWQ_GROUP = 128


@rule("split", "tensorrt_llm/layers/attention.py: heads and KV heads per rank (reading)")
def _split(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        config, tp = side.config, side.config.tp_size
        # TensorRT-LLM can copy a KV head to several ranks; the export of draftproof quantize cannot.
        copied = side.engine.quantization == "checkpoint" and tp % config.num_kv_heads == 0
        kv_fits = config.num_kv_heads % tp == 0 or copied
        if config.num_heads % tp or config.intermediate_size % tp or not kv_fits:
            yield Violation(
                side.role,
                f"tp_size={tp} does not divide num_attention_heads={config.num_heads}, num_key_value_heads="
                f"{config.num_kv_heads} and intermediate_size={config.intermediate_size} (with quantization: "
                "checkpoint, KV heads may divide it)",
                f"set {side.role}.tensorrt_llm.tp_size: 1, or another divisor",
            )
        elif (config.quant_algo or "").endswith("_AWQ") and config.intermediate_size // tp % _AWQ_GROUP:
            yield Violation(
                side.role,
                f"intermediate_size / tp_size = {config.intermediate_size // tp} is not a multiple of the "
                f"{_AWQ_GROUP} weights of an AWQ group",
                f"lower {side.role}.tensorrt_llm.tp_size, or set quantization: fp8",
            )
        if config.num_layers % config.pp_size:
            yield Violation(
                side.role,
                f"pp_size={config.pp_size} does not divide num_hidden_layers={config.num_layers}",
                f"set {side.role}.tensorrt_llm.pp_size: 1",
            )


@rule("devices", "cpp executorImpl.cpp: deviceIds must be tp*pp*cp; worldConfig.cpp")
def _devices(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        section, last = side.engine.tensorrt_llm, pair.gpu.per_machine - 1
        if len(set(section.gpus)) != len(section.gpus) or len(section.gpus) != section.world_size:
            yield Violation(
                side.role,
                f"gpu_device_ids={list(section.gpus)} does not name one GPU for each of "
                f"tp_size x pp_size = {section.world_size} ranks",
                f"correct or remove {side.role}.tensorrt_llm.gpu_device_ids",
            )
        elif max(section.gpus) > last:
            yield Violation(
                side.role,
                f"a machine with {pair.recipe.tensorrt_llm.gpu} has GPUs 0 to {last}, not "
                f"GPU {max(section.gpus)}",
                f"lower {side.role}.tensorrt_llm.tp_size or pp_size, or correct gpu_device_ids",
            )


@rule("positions", "tensorrt_llm/builder.py _init_max_seq_len and build() @008b2b8d")
def _positions(pair: Pair) -> Iterator[Violation]:
    serving = pair.recipe.serving
    for side in pair.sides:
        reach = side.config.max_positions - pair.max_draft_len(side)
        needed = serving.max_seq_len + pair.max_draft_len(side)
        if side.config.max_positions < needed:
            yield Violation(
                side.role,
                f"serving.max_seq_len={serving.max_seq_len} is {needed} with the draft tokens of a round, "
                f"above max_position_embeddings={side.config.max_positions}",
                f"set serving.max_seq_len: {reach}, or use another checkpoint",
            )


@rule("memory", "Draftproof: build/tensorrt_llm/memory_plan.py, whose workspace is an estimate")
def _memory(pair: Pair) -> Iterator[Violation]:
    plan = plan_memory(pair)
    if plan.fits:
        return
    device = plan.fullest_device
    parts = [
        f"{engine.role}: weights {_gib(engine.weight_bytes)}, workspace {_gib(engine.workspace_bytes)}, "
        f"{engine.kv_bytes_per_token} bytes per cached token"
        for engine in (plan.target, plan.draft)
        if device in engine.devices
    ]
    yield Violation(
        "pair",
        f"GPU {device}, {_gib(plan.usable_bytes)} of {pair.recipe.tensorrt_llm.gpu}, has too little memory "
        f"for one request of {plan.tokens_of_a_request} tokens: {'; '.join(parts)}; together "
        f"{_gib(plan.static_bytes_on(device))} without KV caches, {plan.tokens} tokens in both KV caches",
        "raise tp_size, lower serving.max_seq_len or max_batch_size, quantize further, or use a larger GPU",
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


PLACEMENT_RULES = (_split, _devices, _positions, _memory)
