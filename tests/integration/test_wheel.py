"""Tests of the wheel in an otherwise empty environment against a real server, on each installed Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client
from tools.wheel.__main__ import build_wheel

pytestmark = [pytest.mark.triton, pytest.mark.long]

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")

PROGRAM = """
import json, sys
from draftproof import Client, CompletionRequest
from draftproof.errors import DraftproofError, InvalidRequestError  # PromptTooLongError is one of these

request = CompletionRequest("def area(", max_tokens=12, seed=7, temperature=0.8)
answers = []
for url in sys.argv[1:]:
    with Client.connect(url) as client:
        assert client.is_ready()
        answers.append(client.generate(request).output_ids)
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
    return build_wheel(tmp_path_factory.mktemp("dist"))


def _run(*command: object, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,
    )


def _environment(version: str, wheel: Path, folder: Path) -> Path:
    """Make a new environment with the wheel and its dependencies; return its Python."""
    found = sys.executable if version == HERE else shutil.which(f"python{version}")
    chosen = {**os.environ, "PYENV_VERSION": version}  # pyenv's shims need it, others ignore it
    if found is None or _run(found, "-c", "import venv, ensurepip", folder=folder, env=chosen).returncode:
        pytest.skip(f"no Python {version} on this machine: not run")
    made = _run(found, "-m", "venv", folder / "environment", folder=folder, env=chosen)
    assert made.returncode == 0, made.stderr
    python = folder / "environment" / "bin" / "python"
    done = _run(python, "-m", "pip", "install", "--only-binary", ":all:", wheel, folder=folder)
    if "No matching distribution found for httpx" in done.stderr:  # the first one that it needs
        pytest.skip("no package index can be reached: not run")
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_asks_a_server(version: str, wheel: Path, server: Server, tmp_path: Path) -> None:
    """Long, as pip installs from an index.

    tests/unit/tools/test_wheel.py imports the wheel and checks what it requires; test_client_server.py asks a
    server with the same code.
    """
    python = _environment(version, wheel, tmp_path)
    packages = _run(python, "-m", "pip", "list", "--format", "json", folder=tmp_path)
    names = {package["name"] for package in json.loads(packages.stdout)}
    assert "draftproof" in names and not names & {"openvino", "torch", "tokenizers", "pipelines", "build"}
    urls = [f"grpc://127.0.0.1:{server.ports.grpc}", f"http://127.0.0.1:{server.ports.http}"]
    with grpc_client(server) as client:
        request = CompletionRequest("def area(", max_tokens=12, seed=7, temperature=0.8)
        expected = list(client.generate(request).output_ids)
    for key_file in ("", str(server.directory / "key")):
        asked = _run(
            *(python, "-I", "-c", PROGRAM, *urls), folder=tmp_path, env={"DRAFTPROOF_KEY_FILE": key_file}
        )
        assert asked.returncode == 0, asked.stderr
        answers, refused, is_operator = json.loads(asked.stdout)
        assert answers == [expected] * 4
        assert refused == "PromptTooLongError"
        assert is_operator is bool(key_file)
