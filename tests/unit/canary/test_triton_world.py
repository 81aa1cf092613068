"""Tests of a rollout's actions on the pairs of one repository, whose server is a stand-in."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import read_pair, render_beside
from pipelines.canary.controller.triton_world import find_in_service
from pipelines.canary.run_files import arms_file
from pipelines.deploy.triton.pair_record import PAIR_FILE
from pipelines.errors import CanaryError
from pipelines.router.arms import read_table
from tests.unit.canary.conftest import Place


def test_a_candidate_comes_and_goes(place: Place) -> None:
    at_first = place.at_start
    world = place.world()
    checked = world.preflight()
    assert (checked.is_good, checked.reason) == (True, "6 checks pass")
    loaded = world.load().evidence
    assert place.told == [f"load {loaded['model']}"]
    assert place.pairs == ["speculative", loaded["model"]]
    assert place.at_start == at_first
    world.keep()
    assert place.at_start > at_first
    for _ in range(2):
        place.world(loaded["socket"]).unload()  # by controllers that resume
    assert place.told[-1] == f"unload {loaded['model']}"
    assert (place.pairs, place.at_start) == (["speculative"], at_first)


def test_a_refused_candidate_leaves_nothing_and_is_not_loaded(place: Place) -> None:
    place.choose(2, 2, target={"end_ids": [3]})
    checked = place.world().preflight()
    assert not checked.is_good
    assert "its texts end at the same tokens" in checked.reason
    assert checked.evidence["its texts end at the same tokens"]["candidate"] == [3]
    assert (place.told, place.pairs) == ([], ["speculative"])


def test_a_promoted_pair_is_loaded_at_the_start_and_is_the_stable_one(place: Place) -> None:
    assert (place.stable.speculative_model, find_in_service(place.run)[1]) == ("speculative", 0)
    second = place.promote()
    assert find_in_service(place.run)[1] == 4
    assert {second.speculative_model, "speculative"} <= place.at_start
    del place.told[:]
    place.choose(3, 3)
    third = place.promote()
    assert place.pairs == ["speculative", third.speculative_model]
    unloaded = [word for word in place.told if word.startswith("unload")]
    assert unloaded == [f"unload {second.speculative_model}"], "the ensemble keeps its own"


def test_the_recipes_own_pair_may_come_back(place: Place) -> None:
    """It was there all the time: nothing is rendered, and nothing of it is removed if it fails."""
    first, files = place.stable, sorted(path.name for path in (place.run / "model_repository").iterdir())
    place.promote()
    place.choose(1, 1)
    place.free_bytes = 0  # it is loaded already
    world = place.world()
    assert world.preflight().is_good
    loaded = world.load().evidence
    assert (loaded["socket"], loaded["control_socket"]) == (first.socket, first.control_socket)
    assert loaded["same_target"] is False
    del place.told[:]
    assert world.unload() == "the recipe's own pair stays for the ensemble"
    assert (place.told, read_pair(place.run)) == ([], first)
    assert place.promote() == first
    assert read_table(arms_file(place.run)).stable.socket == first.socket
    assert sorted(path.name for path in (place.run / "model_repository").iterdir()) == files


def test_a_promoted_pair_is_refused_as_a_candidate_and_goes_on(place: Place) -> None:
    second = place.promote()
    world = place.world()
    assert "it differs from the pair in service" in world.preflight().reason
    del place.told[:]
    world.unload()  # an abort is carried out before the preflight's result
    assert place.told == []
    assert read_pair(place.run, second.speculative_model) == second
    assert second.loads_at_start


def test_a_shared_target_keeps_its_socket(place: Place) -> None:
    """The candidate has the target of the recipe, while the stable pair has another one."""
    place.promote()
    place.choose(3, 1)
    world = place.world()
    own = Path(str(world.load().evidence["control_socket"]))
    sockets = (place.run / "target.sock", own)
    for path in sockets:
        path.touch()
    world.unload()
    assert [path.exists() for path in sockets] == [True, False]


def test_files_of_nobody_or_of_another_version_are_refused(place: Place) -> None:
    place.promote()
    arms = arms_file(place.run)
    arms.write_text(arms.read_text().replace(".sock", ".gone"))
    with pytest.raises(CanaryError, match="no pair of the repository has the socket"):
        find_in_service(place.run)
    path = place.run / "model_repository" / "speculative" / PAIR_FILE
    for text in ("", "[]", "{}", '{"format": 2}', '{"format": 1, "name": "demo"}'):
        path.write_text(text)
        with pytest.raises(CanaryError, match=r"pair.json: (cannot be read|a key is missing); .*; .*; run "):
            read_pair(place.run)


def test_a_recipe_that_cannot_be_rendered_is_refused_with_the_reason(run: Path) -> None:
    with pytest.raises(
        CanaryError, match=r"could not be rendered .*; there is no recipe demmo.*did you mean"
    ):
        render_beside("demmo", run, 0)


@pytest.mark.parametrize("folder", [".", "a" * 120])  # the path of a socket has at most 107 bytes
def test_a_process_answers_as_long_as_it_accepts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.setattr(triton_world, "REPOSITORY_ROOT", tmp_path / folder)
    monkeypatch.chdir(tmp_path / folder)
    world = place.world()
    assert world.listener("c.sock") is None
    seen = []
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as callers:
            listening.bind("c.sock")
            listening.listen(0)
            seen.append(world.listener("c.sock"))
            for _ in range(3):  # more than its backlog holds
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    caller.connect("c.sock")
            assert world.listener("c.sock") == seen[-1], "a process with a full backlog is alive"
        assert (tmp_path / folder / "c.sock").exists()  # as a killed process leaves it
        assert world.listener("c.sock") is None
        (tmp_path / folder / "c.sock").unlink()
    assert None not in seen
    assert seen[0] != seen[1], "another process has taken its place"
