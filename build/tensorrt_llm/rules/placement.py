"""Rules on the placement of ranks on GPUs, on how they are started, and on memory."""

from __future__ import annotations

from collections.abc import Iterator

from build.tensorrt_llm.memory_plan import plan_memory
from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.ranks import placement_violations
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
                "the layers cannot be split over this many GPUs",
                f"tp_size={tp}, num_attention_heads={config.num_heads}, "
                f"num_key_value_heads={config.num_kv_heads}, intermediate_size={config.intermediate_size}",
                "tp_size must divide all three (with quantization: checkpoint, KV heads may divide it)",
                f"set {side.role}.tensorrt_llm.tp_size: 1, or another divisor",
            )
        elif (config.quant_algo or "").endswith("_AWQ") and config.intermediate_size // tp % _AWQ_GROUP:
            yield Violation(
                side.role,
                "a rank's share of a layer is not a whole number of AWQ groups",
                f"intermediate_size / tp_size = {config.intermediate_size // tp}",
                f"a multiple of {_AWQ_GROUP}",
                f"lower {side.role}.tensorrt_llm.tp_size, or set quantization: fp8",
            )
        if config.num_layers % config.pp_size:
            yield Violation(
                side.role,
                "the layers cannot be spread evenly over the pipeline stages",
                f"pp_size={config.pp_size}",
                f"a divisor of num_hidden_layers={config.num_layers}",
                f"set {side.role}.tensorrt_llm.pp_size: 1",
            )


@rule("devices", "cpp executorImpl.cpp: deviceIds * numNodes must be tp*pp*cp; worldConfig.cpp")
def _devices(pair: Pair) -> Iterator[Violation]:
    return placement_violations(pair.recipe)


@rule("fast-logits", "triton_backend docs: honoured only in orchestrator mode without spawning")
def _fast_logits(pair: Pair) -> Iterator[Violation]:
    section = pair.recipe.tensorrt_llm
    if section.fast_logits and section.mode != "orchestrator":
        yield Violation(
            "pair",
            "TensorRT-LLM would switch fast logits off with a warning",
            f"fast_logits: true, mode: {section.mode}",
            "mode: orchestrator, with ranks that MPI starts",
            "set tensorrt_llm.mode: orchestrator, or remove fast_logits",
        )
    if section.fast_logits and section.num_nodes > 1:
        yield Violation(
            "pair",
            "fast logits are supported on one node only",
            f"num_nodes={section.num_nodes}",
            "num_nodes must be 1",
            "remove tensorrt_llm.fast_logits",
        )


@rule(
    "leader-tensor-parallelism",
    "README of examples/draft_target_model, 0.18: --multi-model is necessary if TP mode is used",
)
def _leader_with_tensor_parallelism(pair: Pair) -> Iterator[Violation]:
    for side in pair.sides:
        if pair.recipe.tensorrt_llm.mode == "leader" and side.config.tp_size > 1:
            yield Violation(
                side.role,
                "two engines with tensor parallelism may not work in leader mode",
                f"mode: leader, tp_size={side.config.tp_size}",
                "NVIDIA documents a pair with tensor parallelism for the orchestrator only",
                "set tensorrt_llm.mode: orchestrator, or test it with a request before it serves",
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
        f"GPU {device} has too little memory for one request of full length",
        "; ".join(parts) + f"; together {_gib(plan.static_bytes_on(device))} without KV caches, "
        f"{plan.tokens} tokens in both KV caches",
        f"{_gib(plan.usable_bytes)} of {pair.recipe.tensorrt_llm.gpu}, {plan.tokens_of_a_request} tokens",
        "raise tp_size, lower serving.max_seq_len or max_num_tokens, quantize further, or use a larger GPU",
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


PLACEMENT_RULES = (_split, _devices, _fast_logits, _memory)

PLACEMENT_WARNINGS = (_leader_with_tensor_parallelism,)
