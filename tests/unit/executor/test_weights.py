"""Tests of the copy of an engine's weights: its bytes are private, and it leaves memory."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from pipelines.errors import EngineLoadError
from pipelines.executor.weights import Weights

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


def test_without_a_folder_the_copy_stays_in_memory(path: Path) -> None:
    weights = Weights(path, "", None)
    weights.release()
    assert not weights.is_in_file
    assert resident(weights) == SIZE


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


def test_a_folder_that_cannot_be_written_costs_memory_and_is_reported(
    path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = Weights(path, "", folder / "missing")
    assert not weights.is_in_file
    assert weights.data.tobytes() == path.read_bytes()
    assert "No such file or directory" in caplog.text


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_cannot_be_read_is_an_error(path: Path, folder: Path, content: bytes | None) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineLoadError, match=r"engine\.bin is missing or was changed"):
        Weights(path, "0" * 64, folder)
