"""Tests that a file of the prompt cache is whole or a miss, and that the folder stays within its limit."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.errors import RecipeError
from pipelines.executor.block_files import BlockFiles

SIZE = 4096
CONTENTS = {name: random.Random(name).randbytes(SIZE) for name in ("a", "b", "c")}


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    opened = BlockFiles(tmp_path / "cache", 10**6)
    for name, content in CONTENTS.items():
        opened.write(name, content)
    return opened


def path_of(files: BlockFiles, name: str) -> Path:
    return files.folder / f"{name}.block"


def test_what_was_written_is_read_also_by_another_server_and_by_nobody_else(files: BlockFiles) -> None:
    assert {name: files.read(name, SIZE) for name in CONTENTS} == CONTENTS
    assert BlockFiles(files.folder).read("a", SIZE) == CONTENTS["a"]
    assert files.read("d", SIZE) is None
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(files, "a").stat().st_mode) == 0o600
    assert (files.num_damaged, files.num_failures) == (0, 0)


def flip(bit: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)

    return damage


def cut_to(num_bytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, num_bytes)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def exchange(path: Path) -> None:
    shutil.copyfile(path.with_name("b.block"), path)


def lose_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1024)
        file.write(bytes(512))


@pytest.mark.parametrize(
    "damage",
    [
        *map(flip, (0, 7, 8 * SIZE // 2 + 3, 8 * SIZE - 1, 8 * SIZE, 8 * (SIZE + 32) - 1)),
        *map(cut_to, (0, 1, SIZE - 1, SIZE, SIZE + 31)),
        lengthen,
        exchange,
        lose_a_page,
    ],
)
def test_a_damaged_file_is_a_miss_and_removed(files: BlockFiles, damage: Callable[[Path], None]) -> None:
    damage(path_of(files, "a"))
    assert files.read("a", SIZE) is None
    assert files.num_damaged == 1
    assert not path_of(files, "a").exists()
    assert files.read("b", SIZE) == CONTENTS["b"]
    files.write("a", CONTENTS["a"])
    assert files.read("a", SIZE) == CONTENTS["a"]


def test_a_file_of_another_size_is_a_miss(files: BlockFiles) -> None:
    assert files.read("a", SIZE - 1) is None


def test_what_was_not_used_for_longest_goes_first_and_the_end_of_a_prompt_before_its_beginning(
    tmp_path: Path,
) -> None:
    files = BlockFiles(tmp_path, 10 * (SIZE + 32))
    for depth in range(3):
        files.write(f"old{depth}", bytes(SIZE), depth)
        os.utime(path_of(files, f"old{depth}"), (time.time() - 1000 - depth,) * 2)
    for depth in range(7):
        files.write(f"new{depth}", bytes(SIZE), depth)
    assert files.read("old0", SIZE) is not None, "which makes it new"
    files.write("last", bytes(SIZE))
    left = {path.stem for path in tmp_path.glob("*.block")}
    assert left == {"old0", "last", *(f"new{depth}" for depth in range(7))}
    for number in range(2):
        files.write(f"more{number}", bytes(SIZE))
    assert {f"new{depth}" for depth in range(7)} - {path.stem for path in tmp_path.glob("*.block")} == {
        "new5",
        "new6",
    }
    assert files.num_files == len(list(tmp_path.glob("*.block")))


def test_what_others_wrote_counts(tmp_path: Path) -> None:
    one, other = (BlockFiles(tmp_path, 40 * (SIZE + 32)) for _ in range(2))
    for number in range(100):
        (one, other)[number % 2].write(str(number), bytes(SIZE))
        assert len(list(tmp_path.glob("*.block"))) <= 44


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("mine", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"note\.txt"):
        BlockFiles(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_folder_whose_mark_was_cut_off_is_ours(files: BlockFiles) -> None:
    cut_to(10)(files.folder / "CACHEDIR.TAG")
    assert BlockFiles(files.folder).read("a", SIZE) == CONTENTS["a"]


def test_what_a_killed_server_left_is_removed_when_nobody_writes_it_any_more(files: BlockFiles) -> None:
    for name, age_s in (("x.1.part", 0.0), ("y.2.part", 3600.0)):
        (files.folder / name).write_bytes(b"half")
        os.utime(files.folder / name, (time.time() - age_s,) * 2)
    BlockFiles(files.folder)
    assert [path.name for path in files.folder.glob("*.part")] == ["x.1.part"]


def fill(files: BlockFiles) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, resource.RLIM_INFINITY))


def remove(files: BlockFiles) -> None:
    shutil.rmtree(files.folder)


def replace(files: BlockFiles) -> None:
    remove(files)
    files.folder.write_text("a file", encoding="utf-8")


@pytest.mark.parametrize("fail", [fill, remove, replace])
def test_a_disk_that_fails_costs_what_it_would_have_kept_and_one_line(
    files: BlockFiles, fail: Callable[[BlockFiles], None], caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        fail(files)
        files.write("d", bytes(SIZE))
        files.write("e", bytes(SIZE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not files.takes_writes
    assert files.read("d", SIZE) is None
    assert files.num_failures >= 2
    assert sum("cannot be written" in record.message for record in caplog.records) == 1
    assert not list(files.folder.glob("*.part"))
    if fail is fill:
        assert files.read("a", SIZE) == CONTENTS["a"]


@pytest.mark.parametrize("num_crashes", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_a_crash_in_the_middle_of_a_write_leaves_nothing_wrong(tmp_path: Path, num_crashes: int) -> None:
    rng, size = random.Random(5), 1 << 20
    contents = {str(number): bytes([number]) * size for number in range(8)}
    num_unfinished = 0
    for _ in range(num_crashes):
        child = os.fork()
        if not child:
            files = BlockFiles(tmp_path, 10**9)
            while True:
                for name, content in contents.items():
                    path_of(files, name).unlink(missing_ok=True)
                    files.write(name, content)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        num_unfinished += bool(list(tmp_path.glob("*.part")))
        files = BlockFiles(tmp_path, 10**9)
        for name, content in contents.items():
            assert files.read(name, size) in (None, content)
        assert not files.num_damaged, "a file appears whole"
        for path in tmp_path.glob("*.part"):
            path.unlink()
    assert num_unfinished, "some were killed in the middle"
