"""Tests that ``triton.sh`` of a bundle starts the real Triton with the pair's ``model.yaml``.

NVIDIA's ``llmapi`` model needs a GPU. In its place is one with the same interface, by reading model.py
@044a90d2: it takes ``model.yaml`` from LLM_CONFIG_PATH, completes Triton's configuration from
``triton_config``, and refuses arguments that ``LLM()`` does not have.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from build.recipe import load_recipe
from build.tensorrt_llm.llm_api import write_llm_api
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.install import TritonInstall
from tests.support.bare_triton import Ask, options, running
from tests.unit.tensorrt_llm.test_preflight import broken_pair

pytestmark = [pytest.mark.triton, pytest.mark.long]  # a stand-in of a GPU

CONFIG = """\
name: "tensorrt_llm"
backend: "python"
instance_group [{ count: 1 kind: KIND_CPU }]
input [
  { name: "text_input" data_type: TYPE_STRING dims: [-1] },
  { name: "streaming" data_type: TYPE_BOOL dims: [1] optional: true }
]
output [{ name: "text_output" data_type: TYPE_STRING dims: [-1] }]
"""

MODEL = """\
import os

import numpy as np
import triton_python_backend_utils as pb_utils
import yaml

from tests.support.llm_arguments import LLM_ARGUMENTS, TRITON_CONFIG, violations


def configuration():
    path = os.path.join(pb_utils.get_model_dir(), os.environ.get("LLM_CONFIG_PATH", "model.yaml"))
    with open(path) as file:
        document = yaml.safe_load(file)
    return document.pop("triton_config"), document


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        triton, _ = configuration()
        config.set_model_transaction_policy({"decoupled": triton["decoupled"]})
        config.set_max_batch_size(triton["max_batch_size"])
        return config

    def initialize(self, args):
        triton, arguments = configuration()
        problems = violations(triton, TRITON_CONFIG) + violations(arguments, LLM_ARGUMENTS["1.3"])
        if problems:
            raise ValueError("; ".join(problems))

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            for word in text.split():
                tensor = pb_utils.Tensor("text_output", np.array([word.encode()], dtype=object))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@contextmanager
def started(tmp_path: Path, version: str = "1.3.0", *more: str) -> Iterator[tuple[Ask, int]]:
    """Run ``triton.sh`` in an image as NVIDIA builds it, as far as the script sees it."""
    broken_pair(tmp_path, {}, {})
    script = write_llm_api(load_recipe(tmp_path / "broken.yaml"), version, tmp_path / "run")["triton"]
    model = tmp_path / "llmapi" / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "1" / "model.py").write_text(MODEL)
    install, port = TritonInstall.find(), Ports.free().http
    environment = install.environment(tmp_path / "libraries")
    environment["PATH"] = f"{environment['PATH']}{os.pathsep}{install.binary.parent}"
    environment["LLMAPI_MODELS"] = str(model.parent)
    backends = install.prepare_backend(tmp_path / "backends")
    command = ["sh", str(script), *options(backends, port), *more]
    with running(command, environment, port, tmp_path / "triton.log") as ask:
        yield ask, port


def stream(port: int, text: str) -> list[str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/tensorrt_llm/generate_stream",
        json.dumps({"text_input": text, "streaming": True}).encode(),
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        events = [line.removeprefix(b"data: ") for line in answer if line.startswith(b"data: ")]
    return [json.loads(event).get("text_output") for event in events]


def test_the_model_gets_our_configuration_and_streams(tmp_path: Path) -> None:
    with started(tmp_path) as (ask, port):
        config = ask("models/tensorrt_llm/config")
        assert config["model_transaction_policy"] == {"decoupled": True}
        assert config["max_batch_size"] == 0
        assert stream(port, "one two three") == ["one", "two", "three"]


def test_arguments_of_another_version_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="'DraftTarget' is none of Draft_Target"),
        started(tmp_path, "1.2.1"),
    ):
        pass


def test_without_completion_triton_would_not_let_it_stream(tmp_path: Path) -> None:
    """NVIDIA's launch_triton_server.py passes this option; the script therefore starts Triton itself."""
    with started(tmp_path, "1.3.0", "--disable-auto-complete-config") as (ask, _):
        assert not ask("models/tensorrt_llm/config").get("model_transaction_policy", {}).get("decoupled")
