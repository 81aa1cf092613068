"""Tests of the atomic replacement of files and directories."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pipelines.atomic_file import whole_directory, whole_file, write_whole


def test_other_users_can_read_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with whole_directory(tmp_path / "engine"):
            pass
        write_whole(tmp_path / "launch.json", "{}")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"engine": 0o755, "launch.json": 0o644}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_directory_is_replaced_atomically(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "engine"
    for content in ("old", "new"):
        with whole_directory(destination) as made:
            (made / content).write_text(content)
            assert not (destination / content).exists()
    assert names(destination) == ["new"]
    assert names(destination.parent) == ["engine"]


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "launch.json"
    for content in ("old", "new"):
        write_whole(path, content)
        assert path.read_text() == content
    assert names(path.parent) == ["launch.json"]


@pytest.mark.parametrize("kind", ["directory", "file"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_failed_write_changes_nothing(kind: str, error: BaseException, tmp_path: Path) -> None:
    with whole_directory(tmp_path / "engine") as made:
        (made / "rank0.engine").write_text("old")
    write_whole(tmp_path / "launch.json", "old")
    with pytest.raises(type(error)):
        if kind == "directory":
            with whole_directory(tmp_path / "engine") as made:
                (made / "rank0.engine").write_text("half")
                raise error
        else:
            with whole_file(tmp_path / "launch.json") as path:
                path.write_text("half")
                raise error
    assert names(tmp_path) == ["engine", "launch.json"]
    assert (tmp_path / "engine" / "rank0.engine").read_text() == "old"
    assert (tmp_path / "launch.json").read_text() == "old"


@pytest.mark.parametrize("failing", ["write_text", "replace"])
def test_write_whole_leaves_no_temporary_file_when_it_fails(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, failing, disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "state.json", "new")
    assert names(tmp_path) == []
