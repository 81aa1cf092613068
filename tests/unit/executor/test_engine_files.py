"""Tests of an engine's files: checked against its manifest, copied, and free to change later."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from pipelines.errors import EngineLoadError
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.weights import Weights
from pipelines.manifest import EngineFiles, engine_digest, read_manifest
from tests.conftest import REPOSITORY_ROOT
from tests.support.damaged_engines import cut_in_half, flip_a_bit, writable_copy
from tests.support.tiny_engines import build_tiny_pair

LIMITS = ExecutorLimits(
    max_batch_size=1, max_num_tokens=32, max_seq_len=64, max_queue_size=0, num_kv_blocks=4
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_tiny_pair(tmp_path_factory.mktemp("engines"))


@pytest.fixture
def engine(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return a target that a test may damage."""
    return writable_copy(pair[1], tmp_path / "target")


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half, Path.unlink])
@pytest.mark.parametrize("name", ["engine.bin", "engine.xml", "engine.json", "tokenizer.json"])
def test_a_damaged_engine_is_not_loaded(engine: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(engine / name)
    with pytest.raises(EngineLoadError) as refused:
        Executor.load(engine, LIMITS)
    error = refused.value
    seen = "sha256 " if damage is not Path.unlink else "No such file"
    what = f"{engine / name} is missing or was changed since the engine was built: {seen}"
    assert error.message.startswith(what) and ", not sha256 " in error.message
    assert error.remedy.endswith("and run 'draftproof engines'")


def test_an_engine_that_was_not_damaged_is_loaded(engine: Path) -> None:
    """This includes engines built before stores became read-only."""
    manifest = read_manifest(engine)
    assert manifest is not None
    assert Executor.load(engine, LIMITS, engine_digest(manifest)).config.role == "target"


def test_another_engine_in_the_place_of_the_one_that_was_rendered_is_not_loaded(
    engine: Path, pair: tuple[Path, Path]
) -> None:
    digest = engine_digest(EngineFiles(engine).manifest)
    shutil.rmtree(engine)
    shutil.copytree(pair[0], engine)
    EngineFiles(engine).check_all()  # it is intact in itself
    with pytest.raises(EngineLoadError, match=f"holds another engine .*: digest .*, not {digest}; run "):
        Executor.load(engine, LIMITS, digest)


def test_an_engine_that_fails_without_a_message_is_refused_with_the_cause(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "run", MagicMock(side_effect=TimeoutError()))
    with pytest.raises(EngineLoadError, match=r"does not run on this machine.*: TimeoutError\(\);"):
        Executor.load(engine, LIMITS)


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"files": []}', '{"files": {"engine.bin": {}}}', "[" * 100_000, b"\xff"]
)
def test_a_directory_without_a_manifest_is_no_engine(engine: Path, content: str | bytes | None) -> None:
    path = engine / "manifest.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        EngineLoadError, match=r"is not an engine: .* no readable manifest.json; .*'draftproof engines'"
    ):
        Executor.load(engine, LIMITS)


def test_a_manifest_that_leaves_a_file_out_does_not_make_it_trusted(engine: Path) -> None:
    manifest = json.loads((engine / "manifest.json").read_text())
    del manifest["files"]["engine.bin"]
    (engine / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineLoadError, match=r"engine\.bin is not among its files"):
        Executor.load(engine, LIMITS)


# Steps of an engine whose files change meanwhile. OpenVINO lays weights out anew for each new number of rows.
CHANGING = """
import hashlib, os, sys
from pathlib import Path
import numpy as np
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles

directory, changes = Path(sys.argv[1]), sys.argv[2] == "changes"
engine = load_engine(EngineFiles(directory), 8, weights_folder=Path(sys.argv[3]) if sys.argv[3:] else None)

def bits(num_rows):
    tokens = np.arange(3, 3 + num_rows, dtype=np.int32)
    chunk = Chunk(tokens, 0, range(1, 5), is_decode=False, num_logits=num_rows)
    return hashlib.sha256(engine.step(pack([chunk], 32)).tobytes()).hexdigest()

path = directory / "engine.bin"
seen = [bits(4)]
if changes:
    path.write_bytes(bytes(path.stat().st_size))
seen += [bits(num_rows) for num_rows in (4, 9, 17)]
if changes:
    os.truncate(path, 0)
seen += [bits(num_rows) for num_rows in (9, 33, 50)]
print(*seen)
"""


def test_steps_do_not_see_what_becomes_of_the_files(engine: Path, tmp_path: Path) -> None:
    """With memory-mapped files, new shapes gave other logits, and the truncation killed the process.

    Nor do they see whether the weights that were laid out have left memory.
    """
    seen = []
    for arguments in (["none"], ["changes", str(tmp_path)]):
        command = [sys.executable, "-c", CHANGING, str(engine), *arguments]
        done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.returncode, done.stderr)
        seen.append(done.stdout.split())
    assert seen[0] == seen[1]
    assert len({*seen[0]}) == 5  # shapes


SIZE = 32 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "engine" / "engine.bin"
    path.parent.mkdir()
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def resident(weights: Weights) -> int:
    """Return the bytes of the copy that are in memory."""
    address = weights.data.ctypes.data
    regions = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    region = next(text for text in regions if text.startswith(f"{address:x}-"))
    found = re.search(r"^Rss: +(\d+) kB$", region, re.M)
    assert found is not None
    return int(found[1]) * 1024


def test_released_bytes_leave_memory_and_can_still_be_read(path: Path, folder: Path) -> None:
    content = path.read_bytes()
    weights = Weights(path, "", folder)
    assert weights.is_in_file
    assert weights.data.tobytes() == content
    assert resident(weights) == SIZE
    weights.release()
    assert resident(weights) == 0
    assert weights.data.tobytes() == content


def test_nobody_else_reaches_the_copy(path: Path, folder: Path) -> None:
    content = path.read_bytes()
    weights = Weights(path, "", folder)
    assert list(folder.iterdir()) == []
    path.write_bytes(bytes(SIZE))
    weights.release()
    assert weights.data.tobytes() == content


def test_a_full_disk_costs_memory_and_is_reported(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = MagicMock(return_value=MagicMock(free=SIZE))
    monkeypatch.setattr("pipelines.executor.weights.shutil.disk_usage", usage)
    with caplog.at_level(logging.WARNING):
        weights = Weights(path, "", folder)
    assert not weights.is_in_file
    assert weights.data.tobytes() == path.read_bytes()
    assert "stay in memory twice" in caplog.text


@pytest.mark.skipif(
    not re.search(r" /dev/shm .* - tmpfs ", Path("/proc/self/mountinfo").read_text()), reason="needs a tmpfs"
)
def test_a_file_in_a_tmpfs_would_free_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        weights = Weights(path, "", Path(folder))
    assert not weights.is_in_file
    assert weights.data.tobytes() == path.read_bytes()
    assert "stay in memory twice" in caplog.text and "tmpfs" in caplog.text


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_cannot_be_read_is_an_error(path: Path, folder: Path, content: bytes | None) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineLoadError, match=r"engine\.bin is missing or was changed"):
        Weights(path, "0" * 64, folder)
