"""Tests of ``launch.json``, as it is written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.recipe import load_recipe
from build.repository import launch_of
from pipelines.deploy.triton.launch import Launch
from pipelines.errors import ServerStartError
from tests.support.gpu_recipes import gpu_recipe


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 6, "runtime": "cuda"}',
        '{"format": 6, "runtime": "embedded", "unheard_of": 1}',
        '{"runtime": "embedded"}',
        '{"format": 5, "runtime": "embedded"}',
    ],
)
def test_a_launch_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "launch.json").write_text(content)
    with pytest.raises(ServerStartError, match="draftproof repository"):
        Launch.read(tmp_path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    launch_of(load_recipe("demo")).write(tmp_path)
    assert Launch.read(tmp_path) == Launch()
    recipe = gpu_recipe(tp_size=4, draft_tp_size=2)
    launch_of(recipe).write(tmp_path)
    assert Launch.read(tmp_path) == Launch("tensorrt_llm", recipe.tensorrt_llm.container, (0, 1, 2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]
