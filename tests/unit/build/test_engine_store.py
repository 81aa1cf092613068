"""Tests of built engines: read-only, replaced by rename only, checked, with digests that are remembered."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from build import digests
from build.digests import file_digests
from build.engines import main
from build.files import new_engine
from pipelines.manifest import EngineFiles, checked_engine, engine_digest
from tests.conftest import REPOSITORY_ROOT
from tests.support.checkpoints import make_checkpoint
from tests.support.damaged_engines import AS_OWNER, flip_a_bit
from tests.support.hugging_face_checkpoints import pair_recipe


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Return arguments of ``build.engines`` for a tiny pair."""
    make_checkpoint(tmp_path / "target")
    make_checkpoint(tmp_path / "draft", num_hidden_layers=1)
    recipe = pair_recipe(tmp_path, *({"checkpoint": str(tmp_path / role)} for role in ("draft", "target")))
    return ["--recipe", str(recipe.path), "--engines", str(tmp_path / "engines")]


def result_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return last


def run_as_owner(program: str, *arguments: str) -> None:
    command = [*AS_OWNER, sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_was_built_cannot_be_written_by_accident(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    target = Path(result_of(capsys)["target"])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [target, *target.iterdir()]}
    assert modes.pop(target.name) == 0o555
    assert modes.keys() >= {"engine.bin", "engine.json", "engine.xml", "manifest.json", "tokenizer.json"}
    assert set(modes.values()) == {0o444}


# Damages the built engines in a way that a build notices, then builds again.
BUILD_AGAIN = """
import sys
from pathlib import Path
from build.engines import main

assert main(sys.argv[1:]) == 0
folder = Path(sys.argv[4]) / "tiny"
for engine in folder.glob("*-*"):
    engine.chmod(0o755)
    (engine / "engine.json").unlink()
    engine.chmod(0o555)
leftover = folder / ".target-0123456789abcdef-x1"  # of a builder that was killed
(leftover / "engine").mkdir(parents=True)
(leftover / "engine" / "engine.bin").write_bytes(b"half")
(leftover / "engine").chmod(0o555)
assert main(sys.argv[1:]) == 0
"""


@pytest.mark.long
def test_an_owner_who_is_not_root_builds_again_and_leaves_nothing(arguments: list[str]) -> None:
    run_as_owner(BUILD_AGAIN, *arguments)
    engines = Path(arguments[-1])
    names = sorted(path.name.split("-")[0] for path in (engines / "tiny").iterdir())
    assert names == [".lock", "draft", "target"]
    for engine in (engines / "tiny").glob("*-*"):
        checked_engine(engine)


def test_an_engine_is_replaced_and_not_written_to(tmp_path: Path) -> None:
    """A process that has one of its files open continues to read the old one."""
    for content in ("old", "new"):
        with new_engine(tmp_path / "target") as (engine, scratch):
            (engine / "engine.bin").write_text(content)
            (scratch / "timing.cache").write_text("for the build alone")
        if content == "old":
            reader = (tmp_path / "target" / "engine.bin").open()
    with reader:
        assert reader.read() == "old"
    assert (tmp_path / "target" / "engine.bin").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_the_same_engine_built_again_has_the_same_digest(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A repository that was rendered before can therefore load it."""
    digests = []
    for _ in range(2):
        assert main(arguments) == 0
        result = result_of(capsys)
        assert result["built"] == ["draft", "target"]
        digests.append([engine_digest(EngineFiles(Path(result[role])).manifest) for role in result["built"]])
        shutil.rmtree(arguments[-1])
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][1]


def test_the_check_finds_a_flipped_bit(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    built = result_of(capsys)
    draft, target = built["draft"], built["target"]
    assert main([*arguments, "--check"]) == 0
    assert result_of(capsys) == {"whole": [draft, target], "damaged": []}
    (Path(target) / "engine.bin").chmod(0o644)
    flip_a_bit(Path(target) / "engine.bin")
    assert main(arguments) == 0
    assert result_of(capsys)["built"] == []  # a build looks at names and sizes only
    assert main([*arguments, "--check"]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {"whole": [draft], "damaged": [target]}
    assert f"damaged: {target}/engine.bin is missing or was changed since the engine was built: " in lines[-1]
    (Path(draft) / "manifest.json").unlink()
    assert main([*arguments, "--check"]) == 1
    assert result_of(capsys) == {"whole": [], "damaged": [draft, target]}


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that were read, which grows."""
    found: list[Path] = []

    def reads(path: Path) -> str:
        found.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(digests, "_KNOWN", tmp_path / "run" / "digests.json")
    monkeypatch.setattr(digests, "sha256_file", reads)
    return found


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path: Path, read: list[Path]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    sizes: list[int] = []
    first = file_digests([two, one], sizes.append)
    assert (first, sizes) == (
        {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, two)},
        [1, 1],
    )
    assert file_digests([one, two]) == first and read == [one, two]
    two.write_bytes(b"3")
    assert file_digests([one, two])[two] == hashlib.sha256(b"3").hexdigest()
    assert read == [one, two, two]


def test_a_file_in_anothers_place_with_its_size_and_time_is_read(tmp_path: Path, read: list[Path]) -> None:
    path, other = tmp_path / "weights", tmp_path / "other"
    path.write_bytes(b"1")
    before = path.stat()
    file_digests([path])
    other.write_bytes(b"2")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert file_digests([path])[path] == hashlib.sha256(b"2").hexdigest()


def test_where_nothing_can_be_written_files_are_read_each_time(tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1")
    digests._KNOWN.parent.touch()
    for _ in range(2):
        assert file_digests([path])[path] == hashlib.sha256(b"1").hexdigest()
    assert read == [path, path]


def test_damaged_memory_is_forgotten(tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1")
    digests._KNOWN.parent.mkdir()
    digests._KNOWN.write_text("[1")
    assert file_digests([path])[path] == hashlib.sha256(b"1").hexdigest()
