"""Tests of how a rollout reads the pair on trial from a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.rendering import second_pair
from pipelines.canary.controller.candidate import (
    CandidatePair,
    engine_manifest,
    load_at_start,
    read_pair,
    remove,
    render_beside,
)
from pipelines.deploy.triton.models import models_at_start
from pipelines.deploy.triton.pair_record import PAIR_FILE
from pipelines.errors import CanaryError
from tests.unit.canary.test_preflight import DEMO, run, write_engine

__all__ = ["run"]


def rendered(tmp_path: Path, run: Path, target: str = "target-2") -> CandidatePair:
    engines = [write_engine(tmp_path / "new" / name, name) for name in ("draft-2", target)]
    record = second_pair.render_second_pair(DEMO, *engines, run)
    return CandidatePair.read(run, record.speculative_model)


def test_it_knows_whether_answers_must_be_equal(tmp_path: Path, run: Path) -> None:
    assert not rendered(tmp_path, run).same_target
    assert rendered(tmp_path / "more", run, target="target-1").same_target


def test_manifests_are_those_of_its_engines(tmp_path: Path, run: Path) -> None:
    pair = rendered(tmp_path, run).pair
    assert [engine_manifest(pair, role)["fingerprint"] for role in ("draft", "target")] == [
        "draft-2",
        "target-2",
    ]
    (tmp_path / "new" / "draft-2" / "manifest.json").write_text("[]")
    with pytest.raises(
        CanaryError, match=r"manifest .*draft-2/manifest.json.*; .*; run 'draftproof engines'"
    ):
        engine_manifest(pair, "draft")


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"format": 2}', '{"format": 1, "name": "demo"}'])
def test_a_record_of_another_version_is_refused(run: Path, text: str | None) -> None:
    path = run / "model_repository" / "speculative" / PAIR_FILE
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        CanaryError,
        match=r"pair.json: (cannot be read|a key is missing); .*; .*; run 'draftproof stop'",
    ):
        read_pair(run)


def test_removing_leaves_nothing_of_it_and_everything_else(tmp_path: Path, run: Path) -> None:
    before = sorted(run.rglob("*"))
    found = rendered(tmp_path, run)
    (run / f"{found.pair.speculative_model}.sock").touch()
    (run / "speculative.sock").touch()
    remove(run, found.pair)
    remove(run, found.pair)
    assert sorted(run.rglob("*")) == sorted([*before, run / "speculative.sock"])


def test_a_shared_target_keeps_its_socket(tmp_path: Path, run: Path) -> None:
    found = rendered(tmp_path, run, target="target-1")
    (run / "target.sock").touch()
    remove(run, found.pair)
    assert (run / "target.sock").exists()


def test_a_pair_in_service_is_loaded_at_the_start_and_cannot_be_removed(tmp_path: Path, run: Path) -> None:
    found = rendered(tmp_path, run)
    load_at_start(run, found.pair, wanted=True)
    assert set(found.pair.models) <= set(models_at_start(run / "model_repository"))
    with pytest.raises(CanaryError, match=f"in service cannot be removed; {found.pair.speculative_model}"):
        remove(run, found.pair)
    load_at_start(run, found.stable, wanted=False)
    assert "speculative" not in models_at_start(run / "model_repository")
    load_at_start(run, found.pair, wanted=False)
    remove(run, found.pair)
    with pytest.raises(CanaryError, match="not in the repository"):
        load_at_start(run, found.pair, wanted=True)


def test_a_recipe_that_cannot_be_rendered_is_refused_with_the_reason(run: Path) -> None:
    with pytest.raises(
        CanaryError, match=r"could not be rendered .*; there is no recipe demmo.*did you mean"
    ):
        render_beside("demmo", run, 0)
