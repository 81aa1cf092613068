"""Run preflight on a TensorRT-LLM pair: check all rules, and plan the memory for each GPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.recipe import Recipe
from build.tensorrt_llm.check import RULES, check_pair
from build.tensorrt_llm.engine import find_engines
from build.tensorrt_llm.memory_plan import MemoryPlan, plan_memory
from build.tensorrt_llm.pair import Pair, Side, read_pair
from build.tensorrt_llm.settings import GPUS
from pipelines.atomic_file import write_whole

_GIB = 1 << 30


def plan_table(plan: MemoryPlan) -> str:
    """Format a plan as text, with one line per engine."""
    lines = [
        f"Memory of a {plan.gpu} (weights and KV caches computed, workspace estimated, not measured):",
        "  engine          GPUs     weights   workspace    KV/token    tokens    KV cache  fraction",
    ]
    for engine in (plan.target, plan.draft):
        tokens = engine.max_tokens_in_paged_kv_cache
        lines.append(
            f"  {engine.role:8}{_devices(engine.devices):>12}{engine.weight_bytes / _GIB:>8.1f} GiB"
            f"{engine.workspace_bytes / _GIB:>8.1f} GiB{engine.kv_bytes_per_token / 1024:>8.1f} KiB"
            f"{tokens:>10}{tokens * engine.kv_bytes_per_token / _GIB:>8.1f} GiB"
            f"{engine.kv_cache_free_gpu_mem_fraction:>10.3f}"
        )
    usable, request = f"{plan.usable_bytes / _GIB:.1f} GiB", plan.tokens_of_a_request
    if plan.fits:
        lines.append(
            f"  {usable} usable; {plan.tokens // request} concurrent requests of {request} tokens; "
            "fractions assume that the target is loaded first, limits in tokens do not"
        )
    else:
        lines.append(f"  does not fit into {usable}")
    return "\n".join(lines)


def _devices(devices: tuple[int, ...]) -> str:
    if len(devices) > 2 and devices == tuple(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ",".join(map(str, devices))


def _plans(pair: Pair) -> list[MemoryPlan]:
    """Plan the memory for the recipe's GPU, then for the other GPUs."""
    names = sorted(GPUS, key=lambda name: name != pair.recipe.tensorrt_llm.gpu)
    plans = []
    for name in names:
        section = dataclasses.replace(pair.recipe.tensorrt_llm, gpu=name)
        recipe = dataclasses.replace(pair.recipe, tensorrt_llm=section)
        plans.append(plan_memory(dataclasses.replace(pair, recipe=recipe, gpu=GPUS[name])))
    return plans


def _plan_document(plan: MemoryPlan) -> dict[str, Any]:
    return {**dataclasses.asdict(plan), "tokens": plan.tokens, "fits": plan.fits}


def _state(side: Side, built: Mapping[str, Path]) -> str:
    if side.role in built:
        return "built"
    return "to be quantized" if side.checkpoint is None else "to be built"


def run_preflight(recipe: Recipe, engines: Path, run: Path) -> dict[str, Any]:
    """Check a pair, and print and store the findings and the memory plans.

    Args:
        recipe: The pair.
        engines: Folder that holds the engines; those of the recipe that exist are compared with it.
        run: Folder in which ``<recipe>/preflight.json`` is written.

    Returns:
        ``recipe``, ``runtime``, ``rules`` (how many were checked), ``findings``, ``engines`` and
        ``memory_plans`` (the recipe's GPU first).

    Raises:
        CheckpointError: A ``config.json`` or ``tokenizer.json`` is missing or invalid.
    """
    pair = read_pair(recipe, engines)
    built = find_engines(pair, engines)
    found = check_pair(pair, built)
    plans = _plans(pair)
    for finding in found:
        print(finding)
    for plan in plans:
        print(plan_table(plan))
    state = ", ".join(f"{side.role} {_state(side, built)}" for side in pair.sides)
    print(f"{len(RULES)} rules checked, {len(found)} violations; {state}")
    document = {
        "recipe": recipe.name,
        "runtime": recipe.runtime,
        "rules": len(RULES),
        "findings": [finding.as_dict() for finding in found],
        "engines": {role: str(path) for role, path in built.items()},
        "memory_plans": [_plan_document(plan) for plan in plans],
    }
    write_whole(run / recipe.name / "preflight.json", json.dumps(document, indent=2) + "\n")
    return document
