"""Tests that rendering, MPI's start and the rules of preflight agree on where a pair's ranks are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.recipe import Recipe
from build.rendering.launch import launch_of
from build.tensorrt_llm.ranks import (
    gpu_device_ids,
    num_nodes,
    participant_ids,
    placement_violations,
    ranks_per_node,
    world_size,
)
from pipelines.deploy.triton.nvidia_triton import leader_worker_set_hosts
from pipelines.errors import RecipeError
from tests.support.gpu_recipes import gpu_recipe

pytestmark = pytest.mark.long  # every placement of ranks

ROLES = ("draft", "target")


def recipes() -> Iterator[Recipe]:
    """Return every pair with so many ranks, in every mode, on up to three machines."""
    for nodes in (1, 2, 3):
        for mode in ("orchestrator", "leader"):
            for target in (1, 2, 3, 4, 6, 8, 12, 16):
                for draft in (1, 2, 3, 4, 6, 8, 12):
                    yield gpu_recipe(target, draft, mode=mode, num_nodes=nodes)


def described(recipe: Recipe) -> str:
    section = recipe.tensorrt_llm
    sizes = [getattr(recipe, role).tensorrt_llm.world_size for role in ROLES]
    return f"{section.mode}, {section.num_nodes} nodes, draft {sizes[0]}, target {sizes[1]}"


def places(recipe: Recipe) -> dict[int, int]:
    """Return MPI rank -> machine, filled machine by machine as mpirun fills them."""
    launch = launch_of(recipe)
    variables = {"LWS_LEADER_ADDRESS": "a.b.c", "LWS_GROUP_SIZE": str(launch.num_nodes)}
    hosts = leader_worker_set_hosts(launch, variables).values()
    machines = [machine for machine, count in enumerate(hosts) for _ in range(count)]
    return dict(enumerate(machines))


def test_every_rank_of_an_engine_has_a_gpu_of_its_own() -> None:
    """TensorRT-LLM puts rank r of an engine on the r-th of its GPUs, in turn."""
    num_accepted = 0
    for recipe in recipes():
        if list(placement_violations(recipe)):
            continue
        num_accepted += 1
        for role in ROLES:
            size, devices = getattr(recipe, role).tensorrt_llm.world_size, gpu_device_ids(recipe, role)
            # executorImpl.cpp: deviceIds * numNodes must be equal to tp*pp*cp
            assert len(devices) * num_nodes(recipe, role) == size, described(recipe)
            ranks = participant_ids(recipe, role)
            assert len(ranks) in (0, size)
            if recipe.tensorrt_llm.mode == "orchestrator":
                others = {0, *participant_ids(recipe, "draft" if role == "target" else "target")}
                assert others.isdisjoint(ranks), described(recipe)
            if recipe.tensorrt_llm.num_nodes > 1:
                machine_of = places(recipe)
                assert len(machine_of) == world_size(recipe)
                taken = [
                    (machine_of[rank], devices[index % len(devices)])
                    for index, rank in enumerate(ranks or range(size))
                ]
                assert len(set(taken)) == size, described(recipe)
    assert num_accepted > 100


@pytest.mark.parametrize(
    ("draft", "target", "mode", "nodes", "expected"),
    [
        # The draft of an orchestrator is on the first machine, however many there are.
        (1, 4, "orchestrator", 2, ((1, (0,)), (2, (0, 1)))),
        (4, 4, "orchestrator", 2, ((1, (0, 1, 2, 3)), (2, (0, 1)))),
        (2, 8, "leader", 2, ((1, (0, 1)), (2, (0, 1, 2, 3)))),
        (4, 8, "leader", 2, ((1, (0, 1, 2, 3)), (2, (0, 1, 2, 3)))),
        (8, 8, "leader", 2, ((2, (0, 1, 2, 3)), (2, (0, 1, 2, 3)))),
    ],
)
def test_machines_and_gpus(
    draft: int, target: int, mode: str, nodes: int, expected: tuple[object, object]
) -> None:
    recipe = gpu_recipe(target, draft, mode=mode, num_nodes=nodes)
    found = tuple((num_nodes(recipe, role), gpu_device_ids(recipe, role)) for role in ROLES)
    assert found == expected
    assert list(placement_violations(recipe)) == []
    assert ranks_per_node(recipe) == target // nodes
    assert launch_of(recipe).gpu_device_ids == tuple(sorted({*expected[0][1], *expected[1][1]}))  # type: ignore[index]


def test_gpus_of_the_draft_beside_the_targets_do_not_count_as_ranks_of_the_other_machines() -> None:
    recipe = gpu_recipe(8, 1, num_nodes=2)
    alone = dataclasses.replace(recipe.draft.tensorrt_llm, gpu_device_ids=(7,))
    recipe = dataclasses.replace(recipe, draft=dataclasses.replace(recipe.draft, tensorrt_llm=alone))
    assert launch_of(recipe).gpu_device_ids == (0, 1, 2, 3, 7)
    assert list(places(recipe).values()) == [0] * 6 + [1] * 4


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (gpu_recipe(1, 1, num_nodes=2), "spread evenly"),
        (gpu_recipe(6, 4, num_nodes=2, mode="leader"), "spread evenly"),
        (gpu_recipe(2, 9, num_nodes=2), "does not have this GPU"),
    ],
)
def test_the_start_refuses_what_the_rules_refuse(recipe: Recipe, told: str, tmp_path: Path) -> None:
    assert any(told in violation.what for violation in placement_violations(recipe))
    with pytest.raises(RecipeError, match=told) as refused:
        launch_of(recipe)
    assert refused.value.values and refused.value.limit and refused.value.remedy
