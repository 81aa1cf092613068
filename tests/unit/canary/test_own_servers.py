"""Tests of a rollout's second server: what it is checked for, and how the first one takes its pair over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.controller import own_servers
from pipelines.canary.controller.own_servers import served_pair
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.server import beside
from pipelines.errors import CanaryError
from tests.unit.canary.conftest import DEMO, Place


def test_the_second_server_is_one_of_its_own_inside_the_first_ones_folder(place: Place) -> None:
    (place.run / "draft_length.json").write_text("{}")
    world, stable = place.world(), place.stable
    assert world.preflight().is_good
    loaded = world.load()
    assert loaded.evidence["same_target"] is False
    candidate = served_pair(beside(place.run))
    assert loaded.evidence["socket"] != stable.socket
    assert (candidate.name, place.stable) == ("new", stable), "the pair in service is untouched"
    assert (beside(place.run) / "draft_length.json").exists(), "a draft length that was set holds there, too"
    (beside(place.run) / "server.log").write_text("why it failed")
    world.unload()
    assert place.told == ["start candidate", "stop candidate"]
    assert not beside(place.run).exists()
    assert (place.run / "candidate.log").read_text() == "why it failed"


def test_every_step_is_safe_to_repeat_by_the_controller_after_one_that_was_killed(place: Place) -> None:
    for step in ("preflight", "load", "settle"):
        first, second = (getattr(place.world(), step)() for _ in range(2))
        assert first.is_good and second.is_good
        assert first.evidence.keys() == second.evidence.keys() and json.dumps(second.evidence)
    assert place.told == ["start candidate", "reload demo", "reload demo"]
    assert place.world().unload() and place.world().unload()
    assert place.told[3:] == ["stop candidate"]


def test_the_first_server_takes_the_pair_over_under_the_name_that_clients_know(place: Place) -> None:
    world, before = place.world(), place.stable
    assert world.preflight().is_good and world.load().is_good
    settled = world.settle()
    assert (settled.evidence["socket"], place.stable.name) == (before.socket, "new")
    assert place.told[-1] == "reload demo"
    assert PairSource.promoted(place.run) == PairSource("new", served_model_name="demo")
    assert {ServedFiles.read(place.run).name, ServerIdentity.read(place.run).pair} == {"demo"}
    assert world.settle().is_good, "after a controller was killed"
    assert ServedFiles.read(place.run).name == "demo"


def test_a_first_server_that_cannot_load_the_pair_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_servers.OwnServers, "listener", lambda self, socket: 7)  # the same process
    monkeypatch.setattr(own_servers.Launch, "ready_timeout_s", 0.0)
    with pytest.raises(CanaryError, match="has not loaded the new pair"):
        place.world().settle()


@pytest.mark.parametrize(
    ("numbers", "changes", "named"),
    [
        ((1, 1), {"recipe": DEMO}, "does not differ from the pair in service"),
        ((2, 2), {"target": {"tokenizer_identity_sha256": "another"}}, "another tokenizer"),
        ((2, 2), {"target": {"end_ids": [7]}}, "other end tokens"),
    ],
)
def test_a_candidate_that_does_not_fit_is_refused_before_it_is_started(
    numbers: tuple[int, int], changes: dict[str, Any], named: str, place: Place
) -> None:
    place.choose(*numbers, **changes)
    found = place.world().preflight()
    assert not found.is_good
    assert found.reason.startswith("refused: ") and named in found.reason
    assert not beside(place.run).exists()


def test_a_machine_without_memory_for_two_servers_is_told_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_servers, "available_bytes", lambda: 1 << 20)
    assert "there is no memory for a second server" in place.world().preflight().reason


def test_pairs_of_tensorrt_llm_are_sent_elsewhere(place: Place) -> None:
    pair = replace(place.stable, runtime="tensorrt_llm")
    assert "draftproof upstreams" in own_servers.compared(pair, pair).reason


def test_what_a_user_names_is_found_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    assert PairSource.of("demo").arguments == ["--recipe", "demo"]
    assert PairSource.of("new.yaml").arguments == ["--recipe", str(tmp_path / "new.yaml")]
    package = PairSource.of("./package", Path("key.pem"))
    assert package.arguments == [
        *("--package", str(tmp_path / "package")),
        *("--public-key", str(tmp_path / "key.pem")),
    ]
    package.promote(tmp_path)
    assert PairSource.promoted(tmp_path) == package
    assert PairSource.promoted(tmp_path / "package") is None
