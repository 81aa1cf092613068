"""A rendered pair in service, and candidates beside it, for tests of rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.tokenizer_file import read_tokenizer
from build.files import write_manifest
from build.recipe import Recipe, load_recipe
from build.rendering.second_pair import render_second_pair
from build.repository import render_recipe
from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress, arm_table
from pipelines.canary.controller.triton_world import ServerAddress, TritonWorld, find_in_service
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.models import models_at_start
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.manifest import sha256_file
from tests.support.tiny_engines import write_tokenizer
from tests.unit.canary.simulated_world import begun

DEMO = load_recipe("demo")
_ENGINE = {
    **{"num_layers": 12, "num_kv_heads": 3, "head_size": 64},
    **{"kv_block_size": 32, "kv_cache_dtype": "float32"},
}

Render = Callable[..., CandidatePair]


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


@pytest.fixture
def rendered(tmp_path: Path, run: Path) -> Render:
    """Return a function that renders a candidate of a draft and a target by their numbers.

    Dictionaries ``draft`` and ``target`` change the manifests of engines that do not exist yet.
    """

    def make(numbers: tuple[int, int] = (2, 2), recipe: Recipe = DEMO, **manifests: Any) -> CandidatePair:
        engines = [
            _write_engine(tmp_path / f"{role}-{number}", **manifests.get(role, {}))
            for role, number in zip(("draft", "target"), numbers, strict=True)
        ]
        return CandidatePair.read(run, render_second_pair(recipe, *engines, run).speculative_model)

    return make


@dataclass
class Place:
    """A run directory, and a server that records what it is told, such as ``load speculative``."""

    run: Path
    render: Render
    told: list[str] = field(default_factory=list)
    candidate: Callable[[], CandidatePair] = field(init=False)
    free_bytes: int = 64 << 30

    def api(self, endpoint: str, key: str) -> Place:
        assert endpoint.startswith("http://127.0.0.1:")
        assert key == "key"
        return self

    def load(self, model: str) -> None:
        self.told.append(f"load {model}")

    def unload(self, model: str) -> None:
        self.told.append(f"unload {model}")

    def close(self) -> None:
        pass

    def choose(self, draft: int, target: int, /, **manifests: Any) -> None:
        """Decide which engines the candidate's recipe has."""
        self.candidate = lambda: self.render((draft, target), replace(DEMO, name="new"), **manifests)

    def world(self, candidate_socket: str = "") -> TritonWorld:
        """Return the world of a new controller."""
        rollout = replace(begun(), recipe_candidate="new", stable_socket=self.stable.socket)
        address = ServerAddress(Ports.free(), "key")
        return TritonWorld(self.run, address, None, rollout, candidate_socket)

    @property
    def stable(self) -> PairRecord:
        return find_in_service(self.run)[0]

    @property
    def pairs(self) -> list[str]:
        return sorted(path.name for path in (self.run / "model_repository").glob("speculative*"))

    @property
    def at_start(self) -> set[str]:
        return set(models_at_start(self.run / "model_repository"))

    def promote(self) -> PairRecord:
        """Promote a candidate as a whole rollout does; return the new pair."""
        world, stable = self.world(), self.stable
        assert world.preflight().is_good
        loaded = world.load().evidence
        assert world.keep().is_good
        rollout = replace(begun(), stable_socket=stable.socket, control_socket=stable.control_socket)
        sockets = loaded["socket"], loaded["control_socket"], loaded["same_target"]
        world.write(arm_table(rollout, Progress(Position("settling", 0.0), 4, *sockets), 0.0))
        assert TritonWorld(self.run, ServerAddress(Ports.free(), "key"), None, rollout, sockets[0]).settle()
        return self.stable


@pytest.fixture
def place(run: Path, rendered: Render, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(run, rendered)
    place.choose(2, 2)

    def render(recipe: str, directory: Path, free: int, public_key: None) -> CandidatePair:
        assert (recipe, free) == ("new", place.free_bytes)  # the server's, not this process's
        return place.candidate()

    monkeypatch.setattr(triton_world, "RepositoryApi", place.api)
    monkeypatch.setattr(triton_world, "free_bytes", lambda metrics_url: place.free_bytes)
    monkeypatch.setattr(triton_world, "render_beside", render)
    return place
