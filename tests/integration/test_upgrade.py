"""Tests of the upgrade from the release before the gateway: its files work, or are refused with a remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build.recipe import load_recipe
from build.rendering.rendered_pair import calibration_file
from build.repository import render_recipe
from pipelines.bench.calibration.__main__ import main as calibrate
from pipelines.canary.controller.state import Store, set_aside
from pipelines.client import CompletionRequest
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import CanaryError, DraftproofError, RecipeError
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import grpc_client, tiny_recipe

pytestmark = [pytest.mark.triton, pytest.mark.long]

BEFORE = "a943c91"
REQUEST = {"prompt": "def main(", "max_tokens": 40, "temperature": 0.7, "seed": 5}

# Run by the old code in its own tree: engines, a rendered repository, an answer, and the states of two
# rollouts.
MADE_THEN = """
import json, sys
from pathlib import Path
from build.repository import render_recipe
from pipelines.canary.phases import Position
from pipelines.canary.rollout import Progress
from pipelines.canary.state import Store
from pipelines.client import Client, CompletionRequest
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client, tiny_recipe
from tests.tiny_engines import build_tiny_pair
from tests.unit.simulated_world import begun

folder = Path(sys.argv[1])
draft, target = build_tiny_pair(folder / "engines")
run = render_recipe(tiny_recipe("tiny", "in_process"), draft, target, folder / "run").parent
with Server.start(run, Ports.free()) as server:
    server.wait_ready()
    with grpc_client(server) as client:
        answer = client.generate(CompletionRequest(**json.loads(sys.argv[2])))
for name, phase in (("ended", "promoted"), ("open", "step/1")):
    store = Store(folder / f"{name}.sqlite")
    rollout = begun()
    store.begin(rollout)
    store.advance(rollout, Progress(Position(phase, 5.0), 4, "c.sock", "t.sock", True, 9, 12.5))
print(json.dumps({"draft": str(draft), "target": str(target), "run": str(run), "ids": answer.output_ids}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    found = subprocess.run(
        ["git", "archive", BEFORE], cwd=REPOSITORY_ROOT, capture_output=True, timeout=120, check=False
    )
    if found.returncode:
        pytest.skip(f"this clone does not have commit {BEFORE}, whose code writes what is upgraded")
    folder = tmp_path_factory.mktemp("before")
    tree = folder / "tree"
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", str(tree)], input=found.stdout, timeout=120, check=True)
    command = [sys.executable, "-c", MADE_THEN, str(folder), json.dumps(REQUEST)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    yield {**json.loads(done.stdout.splitlines()[-1]), "folder": folder, "tree": tree}


def test_its_recipes_are_read_or_refused_with_the_remedy(made: dict[str, Any]) -> None:
    recipes = sorted((made["tree"] / "build" / "recipes").glob("*.yaml"))
    assert len(recipes) > 5
    for path in recipes:
        if "engine_access" in path.read_text():  # which no longer exists: the loop always holds both engines
            with pytest.raises(RecipeError, match=r"serving\.engine_access.*remove it"):
                load_recipe(str(path))
        else:
            assert load_recipe(str(path)).name == path.stem


def test_its_engines_give_the_same_answer_in_a_repository_rendered_anew(
    made: dict[str, Any], tmp_path: Path
) -> None:
    draft, target = Path(made["draft"]), Path(made["target"])
    # As `draftproof repository` does: the pair is measured again, as the old measurements lack something.
    measured = ["--output", str(calibration_file(draft, target)), "--max-rows", "8"]
    assert calibrate(["--draft", str(draft), "--target", str(target), *measured]) == 0
    run = render_recipe(tiny_recipe("tiny"), draft, target, tmp_path / "run").parent
    with Server.start(run, Ports.free()) as server:
        server.wait_ready()
        with grpc_client(server) as client:
            for model in ("generate", "generate_target"):
                answer = client.generate(CompletionRequest(**REQUEST), model)
                assert list(answer.output_ids) == made["ids"]


def test_a_repository_that_it_rendered_is_refused_with_the_remedy(made: dict[str, Any]) -> None:
    with (
        pytest.raises(DraftproofError) as refused,
        Server.start(Path(made["run"]), Ports.free()) as server,
    ):
        server.wait_ready()
    assert "draftproof repository" in str(refused.value)


def test_its_rollouts_are_set_aside_or_left_to_it(made: dict[str, Any]) -> None:
    ended, is_open = made["folder"] / "ended.sqlite", made["folder"] / "open.sqlite"
    set_aside(ended)
    assert not ended.exists() and len(list(made["folder"].glob("ended-*.sqlite"))) == 1
    assert Store(ended).latest() is None
    before = is_open.read_bytes()
    set_aside(is_open)
    with pytest.raises(CanaryError) as refused:
        Store(is_open)
    assert refused.value.remedy and is_open.read_bytes() == before
