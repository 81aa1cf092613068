"""Tests of the wheel in an otherwise empty environment against a real server, on each installed Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client
from tests.support.empty_environment import empty_environment, run_in
from tools.wheel.__main__ import build_small

pytestmark = [pytest.mark.triton, pytest.mark.long]

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

PROGRAM = """
import json, sys
from draftproof import Client, CompletionRequest
from draftproof.errors import DraftproofError, InvalidRequestError  # PromptTooLongError is one of these

request = CompletionRequest("def area(", max_tokens=12, seed=7, temperature=0.8)
with Client.connect(sys.argv[1]) as client:
    assert client.is_ready()
    answers = [client.generate(request).output_ids]
    with client.stream(request) as stream:
        chunks = list(stream)
        assert len(chunks) > 1
        answers.append(stream.result().output_ids)
    try:
        client.generate(CompletionRequest("x", max_tokens=10**6))
    except InvalidRequestError as error:
        refused = type(error).__name__
    try:
        engines = client.model_parameters("speculative")
    except DraftproofError:
        engines = {}
print(json.dumps([answers, refused, "target_engine_dir" in engines]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small(tmp_path_factory.mktemp("dist"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_asks_a_server(version: str, wheel: Path, server: Server, tmp_path: Path) -> None:
    """Long, as pip installs from an index.

    tests/unit/tools/test_wheel.py imports the wheel and checks what it requires; test_client_server.py asks a
    server with the same code.
    """
    python = empty_environment(tmp_path, f"{wheel}[client]", version=version)
    names = _packages(python)
    assert "draftproof" in names and not names & {"openvino", "torch", "tokenizers", "pipelines", "build"}
    url = f"grpc://127.0.0.1:{server.ports.grpc}"
    with grpc_client(server) as client:
        request = CompletionRequest("def area(", max_tokens=12, seed=7, temperature=0.8)
        expected = list(client.generate(request).output_ids)
    for key_file in ("", str(server.directory / "key")):
        asked = run_in(tmp_path, python, "-I", "-c", PROGRAM, url, env={"DRAFTPROOF_KEY_FILE": key_file})
        assert asked.returncode == 0, asked.stderr
        answers, refused, is_operator = json.loads(asked.stdout)
        assert answers == [expected] * 2
        assert refused == "PromptTooLongError"
        assert is_operator is bool(key_file)


def test_without_extras_it_is_small_and_compares_servers(wheel: Path, tmp_path: Path) -> None:
    python = empty_environment(tmp_path, wheel)
    assert wheel.stat().st_size < 3e6 and len(_packages(python) - {"pip", "setuptools"}) < 20
    said = run_in(tmp_path, python.with_name("draftproof"), "verify", "--help").stdout
    assert said.startswith("usage: draftproof verify")


def _packages(python: Path) -> set[str]:
    listed = run_in(python.parent, python, "-m", "pip", "list", "--format", "json")
    return {package["name"] for package in json.loads(listed.stdout)}
