"""Tests of servers whose pair comes from a package: it was copied, and all that it was made of is gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from build.built_pair import BuiltPair
from build.package import write_package
from pipelines.canary.controller.candidate import render_beside
from pipelines.client import Client, CompletionRequest
from pipelines.deploy.__main__ import main
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import CanaryError
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import TIMEOUTS, grpc_client, repository_api, tiny_recipe, wait_until
from tests.support.tiny_engines import build_tiny_pair
from tests.unit.build.test_package import flip, key_pair

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
    write_package(BuiltPair(tiny_recipe(name), *engines), tmp_path / "made", private)
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


def test_a_package_is_served_and_answers_as_its_pair(
    packaged: tuple[Path, Path], server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same weights in the checkout's way, of the session's server, give the same answers."""
    package, public = packaged
    ports = Ports.free()
    command = ["serve", "--package", str(package), "--public-key", str(public), *ports_options(ports)]
    assert main(command) == 0
    recipe = json.loads((package / "package.json").read_text())["recipe"]
    try:
        assert answers(ports.grpc) == answers(server.ports.grpc)
        assert main(command) == 1
        assert "a server of this recipe is running already" in capfd.readouterr().err
    finally:
        assert main(["stop", "--recipe", recipe]) == 0


def test_nothing_starts_from_a_package_that_was_changed(
    packaged: tuple[Path, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
) -> None:
    package, public = packaged
    recipe = json.loads((package / "package.json").read_text())["recipe"]
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
    told = f"error: {package} is not the package that was made; engines/target/engine.bin: sha256 "
    assert [line.startswith(told) for line in refused(public)] == [True, True]
    (package / "package.sig").unlink()
    assert [line.startswith("error: the package is not signed") for line in refused(public)] == [True, True]


@pytest.mark.long  # as test_containers.py, with one container
def test_a_container_serves_a_package_and_keeps_its_run_directory(
    packaged: tuple[Path, Path], server: Server, tmp_path: Path
) -> None:
    """``run`` is what containers start; it becomes the server, also for a second time."""
    package, public = packaged
    recipe = json.loads((package / "package.json").read_text())["recipe"]
    run = tmp_path / "volume" / recipe
    run.mkdir(parents=True)
    for _ in range(2):
        ports = Ports.free()
        command = [sys.executable, "-m", "pipelines.deploy", "run", str(run), "--package", str(package)]
        command += ["--public-key", str(public), *ports_options(ports)]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=log, stderr=log)
        try:
            assert wait_until(lambda: process.poll() is not None or is_ready(ports), 300)
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert answers(ports.grpc) == answers(server.ports.grpc)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def is_ready(ports: Ports) -> bool:
    try:
        with Client.connect(f"grpc://127.0.0.1:{ports.grpc}", TIMEOUTS) as client:
            return bool(client.generate(CompletionRequest("a", max_tokens=1)).output_ids)
    except Exception:
        return False


@pytest.mark.long  # test_containers.py rolls one out
def test_a_candidate_comes_as_a_package(packaged: tuple[Path, Path], tmp_path: Path) -> None:
    """A rollout renders it beside the pair of a running server, which loads it."""
    package, public = packaged
    recipe = json.loads((package / "package.json").read_text())["recipe"]
    engines = build_tiny_pair(tmp_path / "newer", seed=3, num_threads=1)
    write_package(BuiltPair(tiny_recipe("tiny-newer"), *engines), tmp_path / "candidate")
    ports = Ports.free()
    assert main(["serve", "--package", str(package), *ports_options(ports)]) == 0
    try:
        running = Server.running(run_directory(recipe))
        assert running is not None
        with pytest.raises(CanaryError, match="the package is not signed"):
            render_beside(str(tmp_path / "candidate"), running.directory, 4 << 30, public_key=public)
        pair = render_beside(str(tmp_path / "candidate"), running.directory, 4 << 30).pair
        assert pair.target_engine_dir == str(tmp_path / "candidate" / "engines" / "target")
        record = PairRecord.read(running.directory / "model_repository" / pair.speculative_model)
        assert record.name == "tiny-newer"
        with repository_api(running) as api:
            api.load(pair.speculative_model)
        with grpc_client(running) as client:
            assert client.generate(REQUESTS[0]).output_ids
    finally:
        assert main(["stop", "--recipe", recipe]) == 0
