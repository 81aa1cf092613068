"""Tests of ``launch.json``: written and read back, and its meaning for several machines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from build.recipe import load_recipe
from build.rendering.launch import launch_document, write_launch_file
from pipelines.deploy.mpi_hosts import leader_worker_set_hosts
from pipelines.deploy.triton.launch import FORMAT, Launch
from pipelines.errors import ServerStartError
from tests.support.gpu_recipes import gpu_recipe


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 4, "runtime": "cuda"}',
        '{"format": 4, "runtime": "embedded", "mode": "leader"}',
        '{"format": 4, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": []}',
        '{"format": 4, "runtime": "tensorrt_llm", "mode": "solo", "gpu_device_ids": [0]}',
        '{"format": 4, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": [1, 0]}',
        '{"format": 4, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": [0], "world_size": 0}',
        '{"format": 4, "runtime": "tensorrt_llm", "mode": "leader", "gpu_device_ids": [0],'
        ' "spawns_workers": "no"}',
        '{"format": 4, "runtime": "embedded", "unheard_of": 1}',
        '{"runtime": "embedded"}',
        '{"format": 2, "runtime": "embedded"}',
    ],
)
def test_a_launch_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "launch.json").write_text(content)
    with pytest.raises(ServerStartError, match="make repository"):
        Launch.read(tmp_path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    for recipe in (
        load_recipe("demo"),
        gpu_recipe(),
        gpu_recipe(tp_size=4, draft_tp_size=2, fast_logits=True),
    ):
        path = write_launch_file(recipe, tmp_path)
        launch = Launch.read(tmp_path)
        written = json.loads(path.read_text())
        assert written.pop("format") == FORMAT
        assert dataclasses.asdict(launch) | {"gpu_device_ids": list(launch.gpu_device_ids)} == {
            **dataclasses.asdict(Launch()),
            **written,
            "gpu_device_ids": list(launch.gpu_device_ids),
        }
        assert launch.spawns_workers == (
            recipe.runtime == "tensorrt_llm" and not recipe.tensorrt_llm.fast_logits
        )
    assert (launch.world_size, launch.gpu_device_ids) == (7, (0, 1, 2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]


def test_the_leader_of_several_machines_finds_and_counts_them() -> None:
    recipe = gpu_recipe(tp_size=16, num_nodes=2)
    document = launch_document(recipe)
    launch = Launch(**{**document, "gpu_device_ids": tuple(document["gpu_device_ids"])})
    variables = {"LWS_LEADER_ADDRESS": "pair-ranks-0.pair-ranks.default", "LWS_GROUP_SIZE": "2"}
    # orchestrator, draft and half of the target; the other half
    expected = {"pair-ranks-0": 10, "pair-ranks-0-1.pair-ranks.default": 8}
    assert leader_worker_set_hosts(launch, {**variables, "LWS_WORKER_INDEX": "0"}) == expected
    for wrong in ({}, {**variables, "LWS_GROUP_SIZE": "3"}, {**variables, "LWS_WORKER_INDEX": "1"}):
        with pytest.raises(ServerStartError, match="LeaderWorkerSet of 2 pods"):
            leader_worker_set_hosts(launch, wrong)


def test_in_leader_mode_the_larger_engine_decides_how_many_ranks_there_are() -> None:
    document = launch_document(gpu_recipe(tp_size=4, draft_tp_size=2, mode="leader"))
    assert (document["world_size"], document["spawns_workers"]) == (4, False)
