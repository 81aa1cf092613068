"""Place the ranks of engines on machines and GPUs, for rules, memory plan and launch.

An engine has ``tp_size * pp_size`` ranks. On one machine, each rank has its own GPU. On several machines, the
orchestrator's target is spread evenly over all of them, and its draft stays on the first. In leader mode the
larger engine is spread evenly, and the other takes the first ranks. An engine uses the same GPU numbers on
each machine: ``executorImpl.cpp`` of TensorRT-LLM requires that GPUs times machines equals ranks, and
``worldConfig.cpp`` assigns the GPUs to the ranks in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from build.recipe import Recipe
from build.tensorrt_llm.pair import ROLES
from build.tensorrt_llm.rules.rule import Violation
from build.tensorrt_llm.settings import GPUS, TensorRtLlmEngine


def _section(recipe: Recipe, role: str) -> TensorRtLlmEngine:
    return recipe.draft.tensorrt_llm if role == "draft" else recipe.target.tensorrt_llm


def _stays_on_the_first(recipe: Recipe, role: str) -> bool:
    return role == "draft" and recipe.tensorrt_llm.mode == "orchestrator"


def _spread_ranks(recipe: Recipe) -> int:
    """Return the number of ranks of the engine that is on all machines."""
    return max(_section(recipe, role).world_size for role in ROLES if not _stays_on_the_first(recipe, role))


def spawns_workers(recipe: Recipe) -> bool:
    """Return whether the server starts the ranks of its engines itself.

    Spawned ranks run on the machine of their parent and do not support fast logits (llama_multi_instance.md).
    """
    section = recipe.tensorrt_llm
    return section.mode == "orchestrator" and not section.fast_logits and section.num_nodes == 1


def world_size(recipe: Recipe) -> int:
    """Return the number of ranks that MPI starts."""
    if recipe.tensorrt_llm.mode == "leader":
        return _spread_ranks(recipe)  # every rank is a server that loads its part of both
    return 1 if spawns_workers(recipe) else 1 + sum(_section(recipe, role).world_size for role in ROLES)


def ranks_per_node(recipe: Recipe) -> int:
    """Return the ranks on each machine but the first, which also has the orchestrator and its draft."""
    return max(1, _spread_ranks(recipe) // recipe.tensorrt_llm.num_nodes)


def num_nodes(recipe: Recipe, role: str) -> int:
    """Return the number of machines that an engine's ranks are on."""
    if _stays_on_the_first(recipe, role):
        return 1
    size = _section(recipe, role).world_size
    if size == _spread_ranks(recipe):
        return recipe.tensorrt_llm.num_nodes
    return max(1, size // ranks_per_node(recipe))


def gpu_device_ids(recipe: Recipe, role: str) -> tuple[int, ...]:
    """Return the GPUs of one machine that an engine runs on, in the order of its ranks there."""
    section = _section(recipe, role)
    if section.gpu_device_ids is not None:
        return section.gpu_device_ids
    return tuple(range(max(1, section.world_size // num_nodes(recipe, role))))


def participant_ids(recipe: Recipe, role: str) -> tuple[int, ...]:
    """Return the MPI ranks of an engine; empty if the backend finds them itself.

    Orchestrator that spawns its workers: empty. Orchestrator with ranks that MPI started, which fast logits
        and
    several machines require: rank 0 is the orchestrator, followed by the draft's ranks and the target's;
        without
    them the model does not load. Leader: every rank serves both engines; a smaller engine takes the first
    ranks (``executorImpl.cpp``).
    """
    sizes = [_section(recipe, role).world_size for role in ROLES]
    if recipe.tensorrt_llm.mode == "leader":
        return () if sizes[0] == sizes[1] else tuple(range(_section(recipe, role).world_size))
    if spawns_workers(recipe):
        return ()
    first = 1 if role == "draft" else 1 + sizes[0]
    return tuple(range(first, first + _section(recipe, role).world_size))


def placement_violations(recipe: Recipe) -> Iterator[Violation]:
    """Yield each violation in the placement of ranks on machines and GPUs."""
    gpu = recipe.tensorrt_llm.gpu
    for role in ROLES:
        size, nodes = _section(recipe, role).world_size, num_nodes(recipe, role)
        devices = gpu_device_ids(recipe, role)
        fit = size <= ranks_per_node(recipe) or size == nodes * ranks_per_node(recipe)
        ranks = f"tp_size x pp_size = {size}, num_nodes={recipe.tensorrt_llm.num_nodes}"
        if size % nodes or not (fit or _stays_on_the_first(recipe, role)):
            yield Violation(
                role,
                "the ranks cannot be spread evenly over the nodes",
                ranks,
                f"the same number on each of num_nodes={recipe.tensorrt_llm.num_nodes}",
                f"change {role}.tensorrt_llm.tp_size or pp_size, or tensorrt_llm.num_nodes",
            )
        elif len(set(devices)) != len(devices) or len(devices) * nodes != size:
            yield Violation(
                role,
                "gpu_device_ids does not name one GPU per rank",
                f"gpu_device_ids={list(devices)}, {ranks}",
                f"{size // nodes} different GPUs of a node",
                f"correct or remove {role}.tensorrt_llm.gpu_device_ids",
            )
        elif max(devices) >= GPUS[gpu].per_node:
            yield Violation(
                role,
                "a node does not have this GPU",
                f"GPU {max(devices)}",
                f"0 to {GPUS[gpu].per_node - 1} on a node of {gpu}",
                "lower tp_size or pp_size, or raise tensorrt_llm.num_nodes",
            )
