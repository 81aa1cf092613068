"""Tests of servers whose pair comes from a package: it was copied, and all that it was made of is gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from build.built_pair import BuiltPair
from build.package import write_package
from pipelines.canary.controller.own_servers import render
from pipelines.client import Client, CompletionRequest
from pipelines.deploy.__main__ import main
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.errors import CanaryError
from tests.integration.conftest import TIMEOUTS, tiny_recipe
from tests.support.tiny_engines import build_tiny_pair
from tests.unit.build.test_package import key_pair, sign

pytestmark = pytest.mark.triton

REQUESTS = [
    CompletionRequest(prompt, max_tokens=40, temperature=temperature, seed=7)
    for prompt in ("def main(", "import os\n")
    for temperature in (0.0, 1.0)
]


@pytest.fixture
def packaged(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Return a signed package, of which nothing but a copy is left, and the key that accepts it."""
    private, public = key_pair(tmp_path, "key")
    name = f"tiny-{os.getpid()}-{tmp_path.name}"  # its run directory is the checkout's
    engines = build_tiny_pair(tmp_path / "engines", num_threads=1)
    write_package(BuiltPair(tiny_recipe(name), *engines), tmp_path / "made")
    sign(tmp_path / "made", private)
    shutil.copytree(tmp_path / "made", tmp_path / "copied")
    for folder in ("made", "engines"):
        shutil.rmtree(tmp_path / folder)
    yield tmp_path / "copied", public
    shutil.rmtree(run_directory(name), ignore_errors=True)


def answers(port: int) -> list[list[int]]:
    with Client.connect(f"grpc://127.0.0.1:{port}", TIMEOUTS) as client:
        return [list(client.generate(asked).output_ids) for asked in REQUESTS]


def ports_options(ports: Ports) -> list[str]:
    return [text for name, port in asdict(ports).items() for text in (f"--{name}-port", str(port))]


@pytest.mark.long
def test_a_package_is_served_and_answers_as_its_pair(
    packaged: tuple[Path, Path], server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same weights in the checkout's way, of the session's server, give the same answers."""
    package, public = packaged
    ports = Ports.free()
    command = ["serve", "--package", str(package), "--public-key", str(public), *ports_options(ports)]
    assert main(command) == 0
    recipe = yaml.safe_load((package / "recipe.yaml").read_text())["name"]
    try:
        assert answers(ports.grpc) == answers(server.ports.grpc)
        assert main(command) == 1
        assert "a server of this recipe is running already" in capfd.readouterr().err
    finally:
        assert main(["stop", "--recipe", recipe]) == 0


def test_a_candidate_needs_the_demanded_signature(packaged: tuple[Path, Path], tmp_path: Path) -> None:
    package, public = packaged
    (package / "SHA256SUMS.sig").unlink()
    with pytest.raises(CanaryError, match="the package is not signed"):
        render(PairSource.of(str(package), public), tmp_path / "candidate")
