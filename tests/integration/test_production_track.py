"""Tests of the way from two checkpoints to answers on TensorRT-LLM, with the commands that a user types.

Stand-ins replace what needs a GPU. A program plays ``trtllm-build``, with its documented refusals and silent
changes; a Python model under the real Triton plays NVIDIA's C++ backend. Everything else is real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from build import built_pair, engines, preflight, quantize, repository
from pipelines.client import Client, CompletionRequest
from tests.conftest import REPOSITORY_ROOT
from tests.stand_in_tensorrt_llm.repository import stand_in
from tests.support.modelopt_in_process import run_in_process
from tests.support.ready_server import ready_server
from tests.support.stand_in_machine import StandInMachine

pytestmark = [pytest.mark.triton, pytest.mark.long]  # a stand-in of a GPU

PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__")
PAIR = REPOSITORY_ROOT / "engines" / "demo_pair"
ALGOS = {"none": None, "fp8": "FP8", "int8_sq": "W8A8_SQ_PER_CHANNEL"}
RUNTIME = ("--runtime", "tensorrt_llm")

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line that must succeed; return its standard output."""

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
def rounding() -> tuple[str, str]:
    """Return the quantizations of target and draft."""
    return "fp8", "int8_sq"


@pytest.fixture
def recipe(tmp_path: Path, rounding: tuple[str, str]) -> str:
    """Return a recipe of the demonstration pair."""
    text = tmp_path / "calibration.txt"
    text.write_text("def add(first, second):\n    return first + second\n" * 400, encoding="utf-8")
    document = {
        "name": "road",
        "target": {"checkpoint": str(PAIR / "target"), "quantization": rounding[0]},
        "draft": {"checkpoint": str(PAIR / "draft"), "quantization": rounding[1]},
        "serving": {"max_seq_len": 512, "max_draft_len": 4},
        "tensorrt_llm": {"calibration": {"text": str(text), "num_samples": 8, "seq_len": 64}},
    }
    path = tmp_path / "road.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "rounding", [("none", "none"), pytest.param(("fp8", "int8_sq"), marks=pytest.mark.long)]
)
def test_a_pair_goes_all_the_way(
    recipe: str, rounding: tuple[str, str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long one quantizes first, which tests/unit/build/test_quantize.py does in each way."""
    monkeypatch.setattr(quantize, "_run_worker", run_in_process)
    machine = StandInMachine(tmp_path / "machine")
    machine.install("1.2.1")
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    folder, runs = tmp_path / "engines", tmp_path / "run"
    monkeypatch.setattr(built_pair, "ENGINES", folder)
    monkeypatch.setattr(repository, "RUN", runs)
    given = ("--recipe", recipe, *RUNTIME)
    here = ("--engines", str(folder))

    made = last_line(run(quantize.main, *given, *here))
    for role, quantization in zip(("target", "draft"), rounding, strict=True):
        config = json.loads((Path(made[role]) / "config.json").read_text(encoding="utf-8"))
        assert config["quantization"]["quant_algo"] == ALGOS[quantization]

    checked = run(preflight.main, *given, *here, "--run", str(runs))
    assert "h100-80gb" in checked and "h200-141gb" in checked

    commands = run(engines.main, *given, *here, "--dry-run")
    assert commands.count("trtllm-build ") == 2
    assert commands.count("--speculative_decoding_mode draft_tokens_external") == 1
    assert not list(folder.glob("road/*/rank0.engine"))

    built = last_line(run(engines.main, *given, *here))
    assert sorted(built["built"]) == ["draft", "target"]

    rendered = Path(last_line(run(repository.main, *given))["model_repository"])
    assert json.loads((rendered.parent / "launch.json").read_text(encoding="utf-8"))["runtime"] == RUNTIME[1]
    for role in ("draft", "target"):
        stand_in(rendered / role)
    # without a GPU the embedded runtime's Triton serves the stand-ins
    (rendered.parent / "launch.json").unlink()

    accepted = 0
    with (
        ready_server(rendered.parent) as server,
        Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}") as client,
    ):
        for prompt in PROMPTS:
            request = CompletionRequest(prompt, max_tokens=40)
            mine = client.generate(replace(request, num_draft_tokens=4))
            alone = client.generate(request, "generate_target")
            assert mine.output_ids == alone.output_ids
            assert mine.text == alone.text
            accepted += mine.total_accepted_draft_tokens
    assert accepted > 0
