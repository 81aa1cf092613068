"""A rendered pair in service, candidates for it, and a pretended server, for tests of rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.tokenizer_file import read_tokenizer
from build.files import write_manifest
from build.recipe import Recipe, load_recipe
from build.repository import render_recipe
from pipelines.canary.controller import own_servers
from pipelines.canary.controller.own_servers import OwnServers, served_pair
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import beside
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.manifest import sha256_file
from tests.support.tiny_engines import write_tokenizer
from tests.unit.canary.simulated_world import begun

DEMO = load_recipe("demo")
NEW = replace(DEMO, name="new")
_ENGINE = {
    **{"num_layers": 12, "num_kv_heads": 3, "head_size": 64},
    **{"kv_block_size": 32, "kv_cache_dtype": "float32", "num_threads": 2},
}


def _write_engine(directory: Path, **manifest: Any) -> Path:
    if directory.is_dir():
        return directory
    directory.mkdir(parents=True)
    (directory / "engine.bin").write_bytes(b"weights")
    (directory / "engine.json").write_text(json.dumps(_ENGINE))
    tokenizer = directory / "tokenizer.json"
    write_tokenizer(tokenizer)
    identity = {
        "tokenizer_identity_sha256": read_tokenizer(tokenizer).sha256,
        "tokenizer_sha256": sha256_file(tokenizer),
    }
    write_manifest(directory, {"fingerprint": directory.name, "end_ids": [0], **identity, **manifest})
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory with the repository of the pair ``draft-1`` and ``target-1``."""
    engines = [_write_engine(tmp_path / f"{role}-1") for role in ("draft", "target")]
    return render_recipe(DEMO, *engines, tmp_path).parent


@dataclass
class Place:
    """A run directory, and servers that record what they are told, such as ``start candidate``.

    Attributes:
        run: Run directory of the server in service.
        candidate: Renders the candidate's pair into a run directory.
        told: What the servers were told.
        running: Run directories whose servers run.
    """

    run: Path
    candidate: Callable[[Path, str], None] = field(init=False)
    told: list[str] = field(default_factory=list)
    running: set[Path] = field(default_factory=set)

    def choose(self, draft: int, target: int, /, recipe: Recipe = NEW, **manifests: Any) -> None:
        """Decide which engines the candidate's recipe has."""

        def render(run: Path, name: str) -> None:
            engines = [
                _write_engine(self.run.parent / f"{role}-{number}", **manifests.get(role, {}))
                for role, number in (("draft", draft), ("target", target))
            ]
            render_recipe(recipe, *engines, run.parent, name=run.name, served_model_name=name)

        self.candidate = render

    def world(self) -> OwnServers:
        """Return the world of a new controller."""
        rollout = replace(begun(), recipe_candidate="new", stable_socket=self.stable.socket)
        return OwnServers(self.run, rollout, None)

    @property
    def stable(self) -> PairRecord:
        return served_pair(self.run)

    def server(self, directory: Path) -> Any:
        """Return the server of a run directory."""
        place = self

        class Server:
            ports = Ports()
            log = directory / "server.log"

            def wait_ready(self) -> float:
                return 0.0

            def is_ready(self) -> bool:
                return True

            def stop(self) -> None:
                place.told.append(f"stop {directory.name}")
                place.running.discard(directory)

            def reload(self) -> None:
                place.told.append(f"reload {directory.name}")

        return Server()

    def start(self, directory: Path, ports: Ports) -> Any:
        self.told.append(f"start {directory.name}")
        self.running.add(directory)
        return self.server(directory)


@pytest.fixture
def place(run: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(run)
    place.choose(2, 2)

    def render(source: PairSource, directory: Path, options: Sequence[str] = ()) -> None:
        assert source.name == "new"
        assert options == (() if directory == beside(run) else ("--replace",))
        place.candidate(directory, source.served_model_name)

    class Servers:
        start = staticmethod(place.start)

        @staticmethod
        def running(directory: Path) -> Any:
            return place.server(directory) if directory in place.running else None

        @staticmethod
        def clear(directory: Path) -> None:
            assert directory not in place.running

    listeners = iter(range(1, 1000))
    monkeypatch.setattr(own_servers, "render", render)
    monkeypatch.setattr(own_servers, "Server", Servers)
    monkeypatch.setattr(own_servers, "find_server", place.server)
    monkeypatch.setattr(OwnServers, "listener", lambda self, socket: next(listeners))
    return place
