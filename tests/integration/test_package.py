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
from tests.unit.build.test_package import flip, key_pair, sign

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


@pytest.mark.long  # tests/unit/build/test_package.py changes each part of a package
def test_nothing_starts_from_a_package_that_was_changed(
    packaged: tuple[Path, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
) -> None:
    package, public = packaged
    recipe = yaml.safe_load((package / "recipe.yaml").read_text())["name"]
    other = key_pair(tmp_path, "other")[1]
    ports = ports_options(Ports.free())

    def refused(key: Path) -> list[str]:
        """Return the errors of both commands that serve packages."""
        run = tmp_path_factory.mktemp("run") / recipe  # this process keeps the lock of each
        run.mkdir()
        given = ["--package", str(package), "--public-key", str(key), *ports]
        for command in (["serve", *given], ["run", str(run), *given]):
            assert main(command) == 1
            assert not (run / "launch.json").exists() and not run_directory(recipe).exists()
        return [
            line for line in capfd.readouterr().err.splitlines() if not line.startswith("error: the engines")
        ]

    told = "error: the package was signed with another key"
    assert [line.startswith(told) for line in refused(other)] == [True, True]
    [binary] = (package / "engines" / "target").glob("*.bin")
    binary.chmod(0o644)
    flip(binary)
    made = f"error: {package} is not the package that was made, as SHA256SUMS lists it"
    told = f"{made}: engines/target/engine.bin: sha256 "
    assert [line.startswith(told) for line in refused(public)] == [True, True]
    (package / "SHA256SUMS.sig").unlink()
    assert [line.startswith("error: the package is not signed") for line in refused(public)] == [True, True]


def test_a_candidate_needs_the_demanded_signature(packaged: tuple[Path, Path], tmp_path: Path) -> None:
    package, public = packaged
    (package / "SHA256SUMS.sig").unlink()
    with pytest.raises(CanaryError, match="the package is not signed"):
        render(PairSource.of(str(package), public), tmp_path / "candidate")
