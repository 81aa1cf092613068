"""Tests of a second pair in a rendered repository: files of its own beside an untouched first pair."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from build import repository
from build.files import write_manifest
from build.recipe import Recipe, load_recipe
from build.rendering.second_pair import render_second_pair
from build.repository import render_recipe
from pipelines.deploy.triton.models import models_at_start
from pipelines.deploy.triton.pair_record import PAIR_FILE, PairRecord
from pipelines.errors import EngineLoadError, RepositoryError
from pipelines.socket_path import MAX_SOCKET_BYTES
from tests.stand_in_tensorrt_llm import repository as tensorrt_llm

DEMO = load_recipe("demo")


def write_engine(directory: Path, fingerprint: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "engine.bin").write_bytes(b"weights")
    (directory / "tokenizer.json").write_text("{}")
    write_manifest(directory, {"fingerprint": fingerprint})
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the run directory of the pair in service: engines ``draft-1`` and ``target-1``."""
    engines = [write_engine(tmp_path / f"{role}-1", f"{role}-1") for role in ("draft", "target")]
    return render_recipe(DEMO, *engines, tmp_path).parent


def other_pair(tmp_path: Path, draft: str = "draft-2", target: str = "target-1") -> tuple[Path, Path]:
    """Make engines with these fingerprints, in the folders of another recipe."""
    return write_engine(tmp_path / "other" / draft, draft), write_engine(tmp_path / "other" / target, target)


def contents(repository: Path) -> dict[str, bytes]:
    return {
        path.relative_to(repository).as_posix(): path.read_bytes()
        for path in repository.rglob("*")
        if path.is_file()
    }


def parameters(model: Path) -> dict[str, str]:
    text = (model / "config.pbtxt").read_text()
    return dict(re.findall(r'key: "(\w+)" value: { string_value: "([^"]*)" }', text))


def test_a_pair_with_the_same_target_gets_its_own_loop_and_nothing_else(tmp_path: Path, run: Path) -> None:
    repository = run / "model_repository"
    before = contents(repository)
    record = render_second_pair(DEMO, *other_pair(tmp_path), run)
    name = f"speculative_{record.fingerprint[:8]}"
    assert record.speculative_model == name
    after = contents(repository)
    new = {path for path in after if path not in before}
    assert {path: after[path] for path in before} == before
    assert new == {f"{name}/{file}" for file in ("config.pbtxt", "1/model.py", PAIR_FILE)}
    assert f'name: "{name}"' in (repository / name / "config.pbtxt").read_text()
    first, second = parameters(repository / "speculative"), parameters(repository / name)
    assert second["socket"] == record.socket != first["socket"]
    assert second["draft_engine_dir"] == str(tmp_path / "other" / "draft-2")
    assert second["draft_length_file"] == first["draft_length_file"]
    assert sorted(path.name for path in run.iterdir()) == ["launch.json", "model_repository"]
    assert PairRecord.read(repository / name) == record and not record.loads_at_start
    served = PairRecord.read(repository / "speculative")
    assert served.loads_at_start and served.speculative_model == "speculative"
    assert (served.target_fingerprint, served.draft_fingerprint) == ("target-1", "draft-1")


@pytest.mark.parametrize("target", ["target-1", "target-2"])
def test_a_pairs_process_answers_by_its_target_alone_too(tmp_path: Path, run: Path, target: str) -> None:
    record = render_second_pair(DEMO, *other_pair(tmp_path, target=target), run)
    rendered = parameters(run / "model_repository" / record.speculative_model)
    assert rendered["target_socket"] == record.control_socket
    assert record.control_socket.endswith(f"/target_{record.fingerprint[:8]}.sock")
    assert rendered["target_engine_dir"] == str(tmp_path / "other" / target)


def test_the_recipes_own_pair_is_not_rendered_a_second_time(tmp_path: Path, run: Path) -> None:
    before = contents(run)
    record = render_second_pair(DEMO, *other_pair(tmp_path, draft="draft-1"), run)
    assert record == PairRecord.read(run / "model_repository" / "speculative")
    assert contents(run) == before


def promote(run: Path, record: PairRecord) -> None:
    folder = run / "model_repository" / record.speculative_model
    dataclasses.replace(record, loads_at_start=True).write(folder)


def test_a_promoted_pair_that_is_rendered_again_stays_promoted(tmp_path: Path, run: Path) -> None:
    pair = other_pair(tmp_path, target="target-2")
    promote(run, render_second_pair(DEMO, *pair, run))
    before = contents(run)
    assert render_second_pair(DEMO, *pair, run).loads_at_start
    assert contents(run) == before


def test_other_pairs_stay_when_the_recipes_own_is_rendered_again(tmp_path: Path, run: Path) -> None:
    """``draftproof serve`` does so each time, and one of them may be the pair in service."""
    promote(run, render_second_pair(DEMO, *other_pair(tmp_path, target="target-2"), run))
    render_second_pair(DEMO, *other_pair(tmp_path / "trial"), run)
    before = contents(run)
    at_start = models_at_start(run / "model_repository")
    render_recipe(DEMO, tmp_path / "draft-1", tmp_path / "target-1", tmp_path)
    assert contents(run) == before
    assert models_at_start(run / "model_repository") == at_start


def test_a_promoted_pair_that_could_not_be_loaded_is_named(tmp_path: Path, run: Path) -> None:
    engines = other_pair(tmp_path, target="target-2")
    record = render_second_pair(DEMO, *engines, run)
    new = [write_engine(tmp_path / "new" / name, name) for name in ("draft-1", "target-3")]
    shutil.rmtree(engines[1])
    promote(run, record)
    before = contents(run)
    with pytest.raises(
        RepositoryError, match=r"pair cannot be loaded.*target-2 does not exist; .*--recipe demo\)"
    ):
        render_recipe(DEMO, *new, tmp_path)
    assert contents(run) == before
    record.write(run / "model_repository" / record.speculative_model)  # on trial: not needed
    render_recipe(DEMO, *new, tmp_path)
    assert not list((run / "model_repository").glob("*_" + record.fingerprint[:8]))


def test_a_promoted_pair_whose_engine_was_exchanged_is_named(tmp_path: Path, run: Path) -> None:
    engines = other_pair(tmp_path, target="target-2")
    promote(run, render_second_pair(DEMO, *engines, run))
    (engines[1] / "engine.bin").write_bytes(b"weighty")
    write_manifest(engines[1], {"fingerprint": "target-2"})
    with pytest.raises(
        RepositoryError, match=r"promoted pair cannot be loaded.*target-2 now holds another engine; "
    ):
        render_recipe(DEMO, tmp_path / "draft-1", tmp_path / "target-1", tmp_path)


def changed(**serving: Any) -> Recipe:
    return dataclasses.replace(DEMO, serving=dataclasses.replace(DEMO.serving, **serving))


def test_the_name_tells_pairs_apart_by_what_they_are(tmp_path: Path, run: Path) -> None:
    """The location of the engines does not matter: a recipe rebuilt under another name is the same pair."""
    served = PairRecord.read(run / "model_repository" / "speculative")
    same = dataclasses.replace(DEMO, name="renamed")
    assert (
        render_second_pair(same, *other_pair(tmp_path, draft="draft-1"), run).fingerprint
        == served.fingerprint
    )
    pair = other_pair(tmp_path / "more")
    found = {
        render_second_pair(recipe, *pair, run).fingerprint
        for recipe in (DEMO, changed(num_draft_tokens=3), changed(max_draft_len=4), changed(max_batch_size=2))
    }
    assert len(found | {served.fingerprint}) == 5


def test_an_engine_that_was_changed_is_not_rendered(tmp_path: Path, run: Path) -> None:
    draft, target = other_pair(tmp_path)
    (draft / "engine.bin").write_bytes(b"weighty")
    before = contents(run)
    with pytest.raises(EngineLoadError, match="was changed since the engine was built"):
        render_second_pair(DEMO, draft, target, run)
    assert contents(run) == before


def test_half_a_pair_is_never_seen(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = other_pair(tmp_path, target="target-2")
    before = contents(run)

    def disk_is_full(self: PairRecord, folder: Path) -> None:
        if folder.name.startswith("speculative"):
            raise OSError("no space left on device")

    monkeypatch.setattr(PairRecord, "write", disk_is_full)
    with pytest.raises(OSError, match="no space"):
        render_second_pair(DEMO, *pair, run)
    assert contents(run) == before
    assert sorted(path.name for path in run.iterdir()) == ["launch.json", "model_repository"]


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    engines = [write_engine(tmp_path / f"{role}-1", f"{role}-1") for role in ("draft", "target")]
    deep = tmp_path / ("d" * (MAX_SOCKET_BYTES - 20 - len(str(tmp_path))))
    run = render_recipe(DEMO, *engines, deep).parent
    with pytest.raises(RepositoryError, match=f"too long.*{MAX_SOCKET_BYTES} bytes"):
        render_second_pair(DEMO, *other_pair(tmp_path), run)


def test_two_pairs_are_for_the_embedded_runtime_and_others_are_refused_before_they_are_built(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run)
    monkeypatch.setattr(repository, "build_pair", lambda *_: pytest.fail("it has been built"))
    assert repository.main(["--recipe", "demo", "--runtime", "tensorrt_llm", "--add-to", str(run)]) == 1
    assert "only the embedded runtime serves two pairs" in capsys.readouterr().err
    assert contents(run) == before
    recipe = tensorrt_llm.recipe()
    with pytest.raises(RepositoryError, match="only the embedded runtime serves two pairs"):
        render_second_pair(recipe, *other_pair(tmp_path / "b"), tensorrt_llm.render(tmp_path / "c", recipe))


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"format": 2}'])
def test_a_repository_without_its_pairs_record_is_refused(
    tmp_path: Path, run: Path, text: str | None
) -> None:
    path = run / "model_repository" / "speculative" / PAIR_FILE
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        RepositoryError, match=r"pair.json: (cannot be read|a key is missing); .*; run 'draftproof"
    ):
        render_second_pair(DEMO, *other_pair(tmp_path), run)
