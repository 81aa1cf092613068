"""From a pair of checkpoints to answers on TensorRT-LLM's road, by the commands that a user types.

What needs a GPU is played by stand-ins: ``trtllm-build`` by a program that makes its documented refusals and
silent changes, NVIDIA's C++ backend by a Python model under the real Triton. All else is the real thing.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from build import engines, preflight, quantize, repository, variants
from build.recipe import load_recipe
from build.tensorrt_llm.engine_limits import asked_limits
from build.tensorrt_llm.pair import read_pair
from build.tensorrt_llm_repository import BuiltEngine
from pipelines.calibration import quantizations
from pipelines.client import Client, CompletionRequest
from pipelines.deploy import Ports, Server
from tests.conftest import REPOSITORY_ROOT
from tests.modelopt_in_process import run_in_process, worker
from tests.stand_in_machine import StandInMachine
from tests.stand_in_tensorrt_llm.repository import stand_in

pytestmark = [pytest.mark.triton, pytest.mark.slow]

PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__")
PAIR = REPOSITORY_ROOT / "engines" / "demo_pair"
RUNTIME = ("--runtime", "tensorrt_llm")

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line that succeeds; gives its standard output."""

    def call(main: Callable[[list[str]], int], *arguments: str) -> str:
        capsys.readouterr()
        code = main([*arguments])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return call


def last_line(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """The demonstration pair, a target in FP8 and a draft in INT8."""
    text = tmp_path / "calibration.txt"
    text.write_text("def add(first, second):\n    return first + second\n" * 400, encoding="utf-8")
    document = {
        "name": "road",
        "target": {"checkpoint": str(PAIR / "target"), "quantization": "fp8"},
        "draft": {"checkpoint": str(PAIR / "draft"), "quantization": "int8_sq"},
        "serving": {"max_seq_len": 512, "max_draft_len": 4},
        "tensorrt_llm": {"calibration": {"text": str(text), "num_samples": 8, "seq_len": 64}},
    }
    path = tmp_path / "road.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def test_a_pair_goes_all_the_way(
    recipe: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    monkeypatch.setattr(quantize, "_run_worker", run_in_process)
    machine = StandInMachine(tmp_path / "machine")
    machine.install("1.2.1")
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    folder, runs = tmp_path / "engines", tmp_path / "run"
    monkeypatch.setattr(repository, "ENGINES", folder)
    monkeypatch.setattr(repository, "RUN", runs)
    given = ("--recipe", recipe, *RUNTIME)
    here = ("--engines", str(folder))

    made = last_line(run(quantize.main, *given, *here))
    for role, algo in (("target", "FP8"), ("draft", "W8A8_SQ_PER_CHANNEL")):
        config = json.loads((Path(made[role]) / "config.json").read_text(encoding="utf-8"))
        assert config["quantization"]["quant_algo"] == algo

    checked = run(preflight.main, *given, *here, "--run", str(runs))
    assert "h100-80gb" in checked and "h200-141gb" in checked

    commands = run(engines.main, *given, *here, "--dry-run")
    assert commands.count("trtllm-build ") == 2
    assert commands.count("--speculative_decoding_mode draft_tokens_external") == 1
    assert not list(folder.glob("road/*/rank0.engine"))

    built = last_line(run(engines.main, *given, *here))
    assert sorted(built["built"]) == ["draft", "target"]

    pair = read_pair(load_recipe(recipe, "tensorrt_llm"), folder)
    for side in pair.sides:  # the rules of the pre-flight and of rendering see the same numbers
        assert BuiltEngine.read(side.role, Path(built[side.role])).limits == asked_limits(pair, side)

    rendered = Path(last_line(run(repository.main, *given))["model_repository"])
    assert json.loads((rendered.parent / "launch.json").read_text(encoding="utf-8"))["runtime"] == RUNTIME[1]
    for role in ("draft", "target"):
        stand_in(rendered / role)
    (rendered.parent / "launch.json").unlink()  # no GPU: the embedded runtime's Triton serves the stand-ins

    accepted = 0
    with Server.start(rendered.parent, Ports.free()) as server:
        server.wait_ready()
        with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}") as client:
            for prompt in PROMPTS:
                request = CompletionRequest(prompt, max_tokens=40)
                mine = client.generate(replace(request, num_draft_tokens=4))
                alone = client.generate(request, "generate_target")
                assert mine.output_ids == alone.output_ids
                assert mine.text == alone.text
                accepted += mine.total_accepted_draft_tokens
    assert accepted > 0


def test_acceptance_is_predicted_before_a_gpu_is_rented(
    recipe: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    monkeypatch.setattr(quantize, "_run_worker", run_in_process)
    found = run(variants.main, "--recipe", recipe, "--engines", str(tmp_path / "engines"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(found.splitlines()[-1]))
    document = last_line(run(quantizations.main, "--num-prompts", "4", "--max-tokens", "16"))
    rates = [entry["acceptance_rate"] for entry in document["pairs"]]
    assert len(rates) >= 16
    assert all(0 < rate <= 1 for rate in rates)
