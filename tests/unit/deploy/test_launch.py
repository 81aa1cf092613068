"""Tests of ``launch.json``: written and read back, and its meaning for several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.recipe import load_recipe
from build.rendering.launch import launch_of, write_launch_file
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.nvidia_triton import leader_worker_set_hosts
from pipelines.errors import RecipeError, ServerStartError
from tests.support.gpu_recipes import gpu_recipe


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 5, "runtime": "cuda"}',
        '{"format": 5, "runtime": "embedded", "mode": "leader"}',
        '{"format": 5, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": []}',
        '{"format": 5, "runtime": "tensorrt_llm", "mode": "solo", "gpu_device_ids": [0]}',
        '{"format": 5, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": [1, 0]}',
        '{"format": 5, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": [0], "world_size": 0}',
        '{"format": 5, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": [0],'
        ' "spawns_workers": "no"}',
        '{"format": 5, "runtime": "embedded", "unheard_of": 1}',
        '{"runtime": "embedded"}',
        '{"format": 2, "runtime": "embedded"}',
    ],
)
def test_a_launch_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "launch.json").write_text(content)
    with pytest.raises(ServerStartError, match="draftproof repository"):
        Launch.read(tmp_path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    for recipe in (
        load_recipe("demo"),
        gpu_recipe(),
        gpu_recipe(tp_size=4, draft_tp_size=2, fast_logits=True),
    ):
        write_launch_file(recipe, tmp_path)
        launch = Launch.read(tmp_path)
        assert launch == launch_of(recipe)
        assert launch.spawns_workers == (
            recipe.runtime == "tensorrt_llm" and not recipe.tensorrt_llm.fast_logits
        )
    assert (launch.world_size, launch.gpu_device_ids) == (7, (0, 1, 2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]


def test_the_leader_of_several_machines_finds_and_counts_them() -> None:
    recipe = gpu_recipe(tp_size=16, num_nodes=2)
    launch = launch_of(recipe)
    variables = {"LWS_LEADER_ADDRESS": "pair-ranks-0.pair-ranks.default", "LWS_GROUP_SIZE": "2"}
    # orchestrator, draft and half of the target; the other half
    expected = {"pair-ranks-0": 10, "pair-ranks-0-1.pair-ranks.default": 8}
    assert leader_worker_set_hosts(launch, {**variables, "LWS_WORKER_INDEX": "0"}) == expected
    for wrong in ({}, {**variables, "LWS_GROUP_SIZE": "3"}, {**variables, "LWS_WORKER_INDEX": "1"}):
        with pytest.raises(ServerStartError, match="LeaderWorkerSet of 2 pods"):
            leader_worker_set_hosts(launch, wrong)


def test_in_leader_mode_the_larger_engine_decides_how_many_ranks_there_are() -> None:
    launch = launch_of(gpu_recipe(tp_size=4, draft_tp_size=2, mode="leader"))
    assert (launch.world_size, launch.spawns_workers) == (4, False)


@pytest.mark.parametrize("image", ["draftproof", "draftproof:latest", "registry.example:5000/draftproof"])
def test_a_container_that_may_change_is_refused(image: str) -> None:
    with pytest.raises(RecipeError, match=r"has no fixed tag; tensorrt_llm\.container"):
        launch_of(gpu_recipe(container=image))
