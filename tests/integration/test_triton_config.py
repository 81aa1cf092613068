"""Tests that Triton's own loader reads every configuration rendered for TensorRT-LLM, of every recipe.

Triton 2.51 is real. NVIDIA's C++ backend is not here: ``tensorrtllm`` is a Python-based backend whose model
does nothing, and our Python models are replaced by the same one, so only the configurations are tested.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from build.recipe import RECIPES, load_recipe
from build.repository import render_recipe
from build.tensorrt_llm.memory_plan import plan_memory
from build.tensorrt_llm.pair import read_pair
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.install import TritonInstall
from tests.integration.conftest import wait_until
from tests.stand_in_tensorrt_llm.repository import write_engine
from tests.unit.tensorrt_llm.test_preflight import with_models

pytestmark = [pytest.mark.triton, pytest.mark.long]  # a stand-in of a GPU

PRODUCTION_RECIPES = sorted(
    path.stem for path in RECIPES.glob("*.yaml") if load_recipe(path.stem).runtime == "tensorrt_llm"
)
ONE_OF_EACH_KIND = ("llama-3-1-405b-int8", "qwen3-8b-fp8")  # eight GPUs and one, both quantizations

Ask = Callable[[str], Any]

NOTHING = """\
class TritonPythonModel:
    def execute(self, requests):
        raise NotImplementedError
"""


def rendered(name: str, tmp_path: Path) -> Path:
    """The recipe's repository; its Python models do nothing."""
    recipe = with_models(load_recipe(name), tmp_path)
    pair = read_pair(recipe, tmp_path / "engines")
    build = {"max_num_tokens": pair.max_num_tokens}
    engines = [
        write_engine(tmp_path / "engines" / role, role, recipe, build_config=build)
        for role in ("draft", "target")
    ]
    repository = render_recipe(recipe, *engines, tmp_path / "run", plan_memory(pair))
    for model in repository.glob("*/1/model.py"):
        model.write_text(NOTHING)
    return repository


@contextmanager
def triton(repository: Path, tmp_path: Path) -> Iterator[Ask]:
    """Start Triton alone, over HTTP, with every model of a repository.

    Yields:
        Asks for a path below ``/v2/`` and returns the JSON.

    Raises:
        AssertionError: It ended, or is not ready in time; the message is its log.
    """
    install, port, log = TritonInstall.find(), Ports.free().http, tmp_path / "triton.log"
    backends = install.prepare_backend(tmp_path / "backends")
    (backends / "tensorrtllm").mkdir(exist_ok=True)
    (backends / "tensorrtllm" / "model.py").write_text(NOTHING)
    command = [str(install.binary), f"--model-repository={repository}", "--disable-auto-complete-config"]
    command += [f"--backend-directory={backends}", "--http-address=127.0.0.1", f"--http-port={port}"]
    command += ["--allow-grpc=false", "--allow-metrics=false", "--exit-timeout-secs=5"]
    command += [f"--backend-config=python,shm-region-prefix-name=bare_{port}_"]
    environment = install.environment(tmp_path / "libraries")
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v2/", trust_env=False, timeout=120) as client:

        def is_ready() -> bool:
            assert server.poll() is None, log.read_text()
            with suppress(httpx.TransportError):
                return client.get("health/ready").is_success
            return False

        try:
            assert wait_until(is_ready), log.read_text()
            yield lambda path: client.get(path).json()
        finally:
            server.terminate()
            server.wait(120)


def missing(expected: Any, found: Any, where: str) -> list[str]:
    """Return what a message sets and another lacks; defaults that Triton adds do not count."""
    wrong: list[str] = []
    for field, value in expected.ListFields():
        place, other = f"{where}.{field.name}", getattr(found, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            wrong += [f"{place}[{key}]: {value[key]}" for key in value if value[key] != other[key]]
        elif isinstance(other, str | bytes | bool | int | float):
            wrong += [] if value == other else [f"{place}: {value!r}, Triton {other!r}"]
        elif field.message_type is None:
            wrong += [] if list(value) == list(other) else [f"{place}: {value}, Triton {other}"]
        elif field.is_repeated:
            if len(value) != len(other):
                wrong.append(f"{place}: {len(value)}, Triton {len(other)}")
            for index, (one, two) in enumerate(zip(value, other, strict=False)):
                wrong += missing(one, two, f"{place}[{index}]")
        else:
            wrong += missing(value, other, place)
    return wrong


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ONE_OF_EACH_KIND else pytest.mark.long)
        for name in PRODUCTION_RECIPES
    ],
)
def test_triton_reads_what_the_files_say(name: str, tmp_path: Path) -> None:
    """The recipes that are long tests have the files of the others, with other numbers."""
    repository = rendered(name, tmp_path)
    files = sorted(repository.glob("*/config.pbtxt"))
    with triton(repository, tmp_path) as ask:
        answers = {path.parent.name: ask(f"models/{path.parent.name}/config") for path in files}
    assert {model for model, answer in answers.items() if answer["backend"] == "tensorrtllm"} == {
        "draft",
        "target",
    }
    for path in files:
        said = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        # "runtime" is what makes the backend here a Python-based one.
        read = json_format.ParseDict(answers[path.parent.name], model_config_pb2.ModelConfig())
        assert missing(said, read, path.parent.name) == []
