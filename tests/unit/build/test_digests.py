"""Tests of digests that are remembered: a changed file is read again, an unchanged one is not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from build import digests
from build.digests import file_digests


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


def test_damaged_memory_is_forgotten(tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1")
    digests._KNOWN.parent.mkdir()
    digests._KNOWN.write_text("[1")
    assert file_digests([path])[path] == hashlib.sha256(b"1").hexdigest()
