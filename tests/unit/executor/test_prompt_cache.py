"""Tests of the prompt cache: blocks outlive their executor, and whatever is on disk changes no answer."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import stat
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import RecipeError
from pipelines.executor.block_files import BlockFiles
from pipelines.executor.executor import Executor
from pipelines.speculation.request import Output
from tests.support.recording_engine import BLOCK_SIZE, RecordingEngine, alone, make_executor, request, run

PROMPT = [1 + number % 13 for number in range(6 * BLOCK_SIZE + 2)]
ORIGIN = {"engine": "one"}


class Server:
    """An executor over a fresh engine and a folder, as after a restart."""

    def __init__(
        self, folder: Path, *, attention: str = "openvino", kernels: str = "", num_blocks: int = 64
    ) -> None:
        self.engine = RecordingEngine(num_blocks, attention=attention)
        self.engine.kernels = kernels
        self.executor = make_executor(self.engine, num_blocks)
        self.files = BlockFiles(folder, 10**9)
        self.executor.keep_blocks(self.files, ORIGIN)

    def answer(self, prompt: list[int], salt: str = "", max_tokens: int = 12) -> Output:
        asked = request(prompt, max_tokens, cache_salt=salt)

        async def answered() -> Output:
            await self.executor.read_ahead(asked)
            output = await self.executor.complete(asked)
            stored = self.executor.stored_blocks
            assert stored is not None
            while stored._is_writing:
                await asyncio.sleep(0.005)
            return output

        return run([self.executor], answered)


@pytest.mark.parametrize("attention", ["openvino", "draftproof"])
def test_a_prompt_is_read_after_a_restart_and_not_computed(tmp_path: Path, attention: str) -> None:
    first = Server(tmp_path, attention=attention).answer(PROMPT)
    assert first.num_cached == 0
    server = Server(tmp_path, attention=attention)
    again = server.answer(PROMPT)
    assert again.num_cached == 6 * BLOCK_SIZE
    assert server.engine.num_computed.keys().isdisjoint(range(1, 6 * BLOCK_SIZE)), "0 is that of dummy rows"
    assert again.token_ids.tolist() == first.token_ids.tolist() == alone(request(PROMPT), attention)
    stored = server.executor.stored_blocks
    assert stored is not None
    assert stored.num_read_tokens == 6 * BLOCK_SIZE


@pytest.mark.parametrize("attention", ["openvino", "draftproof"])
def test_an_answer_in_the_next_prompt_is_read_only_if_its_bits_are_the_same(
    tmp_path: Path, attention: str
) -> None:
    first = Server(tmp_path, attention=attention).answer(PROMPT)
    turn = [*PROMPT, *first.token_ids.tolist(), 3, 1, 2]
    again = Server(tmp_path, attention=attention).answer(turn)
    assert again.token_ids.tolist() == alone(request(turn), attention)
    assert again.num_cached == (6 if attention == "openvino" else 9) * BLOCK_SIZE


def test_blocks_are_written_at_a_pace_that_leaves_the_cores_to_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.executor.stored_blocks._WRITING_SHARE", 1e-9)
    server = Server(tmp_path)

    async def answered() -> int:
        for _ in range(2):
            await server.executor.complete(request(PROMPT, 12))
            await asyncio.sleep(0.1)
        return server.files.num_files

    assert run([server.executor], answered) == 1, "the next one is due in an hour"


def test_a_prompt_that_goes_on_otherwise_takes_what_it_shares(tmp_path: Path) -> None:
    Server(tmp_path).answer(PROMPT)
    other = [*PROMPT[: 3 * BLOCK_SIZE + 1], 14, 14, 14, 14, 14]
    again = Server(tmp_path).answer(other)
    assert again.num_cached == 3 * BLOCK_SIZE
    assert again.token_ids.tolist() == alone(request(other))


def test_another_engine_kernel_or_salt_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Server(tmp_path).answer(PROMPT, salt="mine")
    assert Server(tmp_path).answer(PROMPT, salt="mine").num_cached
    assert not Server(tmp_path).answer(PROMPT, salt="yours").num_cached
    assert not Server(tmp_path, kernels="of another machine").answer(PROMPT, salt="mine").num_cached
    monkeypatch.setitem(ORIGIN, "engine", "another")
    assert not Server(tmp_path).answer(PROMPT, salt="mine").num_cached


def test_salts_share_nothing_in_memory_either(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.answer(PROMPT, salt="mine")
    assert not server.answer(PROMPT, salt="yours").num_cached
    assert server.answer(PROMPT, salt="yours").num_cached > server.answer(PROMPT[:9], salt="").num_cached == 0


@pytest.mark.parametrize("number", range(6))
def test_a_damaged_block_is_computed(tmp_path: Path, number: int) -> None:
    Server(tmp_path).answer(PROMPT, max_tokens=1)
    paths = sorted(tmp_path.glob("*.block"), key=lambda path: -path.stat().st_mtime)
    assert len(paths) == 6
    content = bytearray(paths[number].read_bytes())
    content[5] ^= 4
    paths[number].write_bytes(content)
    server = Server(tmp_path)
    again = server.answer(PROMPT)
    assert (again.num_cached, server.files.num_damaged) == (number * BLOCK_SIZE, 1)
    assert again.token_ids.tolist() == alone(request(PROMPT))
    assert Server(tmp_path).answer(PROMPT).num_cached == 6 * BLOCK_SIZE, "and written again"


def test_whatever_is_in_the_folder_answers_are_right(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    texts = [rng.integers(1, 3, rng.integers(2, 40)).tolist() for _ in range(12)]
    expected = [alone(request(text)) for text in texts]
    for _ in range(4):
        server = Server(tmp_path, num_blocks=40)
        for number in rng.permutation(len(texts)).tolist():
            paths = sorted(tmp_path.glob("*.block"))
            if paths and rng.random() < 0.5:
                one, other = (paths[place] for place in rng.integers(len(paths), size=2))
                one.write_bytes(rng.choice([other.read_bytes()[: int(rng.integers(200))], b""]))
            assert server.answer(texts[number]).token_ids.tolist() == expected[number]


def test_as_much_is_read_as_there_are_blocks_for(tmp_path: Path) -> None:
    Server(tmp_path).answer(PROMPT)
    server = Server(tmp_path, num_blocks=64)
    cache = server.executor.scheduler.classes[0].cache
    names = np.array(PROMPT, np.int32), len(PROMPT)

    async def read() -> int:
        held, _ = cache.start(np.arange(20, 24, dtype=np.int32), 4)
        assert cache.grow(held, (cache.quota - 2) * BLOCK_SIZE)
        await server.executor.read_ahead(request(PROMPT))
        cache.discard(held)
        return len(list(cache.path(*names)))

    assert run([server.executor], read) == 2


def slow(read: Callable[..., memoryview | None]) -> Callable[..., memoryview | None]:
    def wait_and_read(*arguments: object) -> memoryview | None:
        time.sleep(0.6)
        return read(*arguments)

    return wait_and_read


def test_a_disk_that_is_slower_than_computing_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Server(tmp_path).answer(PROMPT)
    server = Server(tmp_path)
    server.files.read = slow(server.files.read)  # type: ignore[method-assign]
    again = server.answer(PROMPT)
    assert again.num_cached == 0
    assert again.token_ids.tolist() == alone(request(PROMPT))
    assert sum("slower than computing" in record.message for record in caplog.records) == 1


def test_a_moment_without_news_from_the_disk_costs_no_long_prompt(tmp_path: Path) -> None:
    Server(tmp_path).answer(PROMPT)
    server = Server(tmp_path)
    stored, read = server.executor.stored_blocks, server.files.read
    assert stored is not None
    stored._computing_s = lambda begin, end: 0.44 * (end - begin) / BLOCK_SIZE

    def halting(name: str, num_bytes: int, depth: int = 0) -> memoryview | None:
        time.sleep(0.8 if depth == 1 else 0.0)
        return read(name, num_bytes, depth)

    server.files.read = halting  # type: ignore[method-assign]
    assert server.answer(PROMPT).num_cached == 6 * BLOCK_SIZE


def test_a_step_that_was_given_up_keeps_blocks_from_being_read_into(tmp_path: Path) -> None:
    Server(tmp_path).answer(PROMPT)
    server = Server(tmp_path)

    async def read() -> int:
        server.engine.is_busy = True
        await server.executor.read_ahead(request(PROMPT))
        server.engine.is_busy = False
        return server.executor.count_cached(np.array(PROMPT, np.int32))

    assert run([server.executor], read) == 0


def test_the_target_alone_reads_nothing_that_the_loop_has_written(tmp_path: Path) -> None:
    def two_classes() -> Executor:
        executor = make_executor(RecordingEngine(64), num_classes=2, max_seq_len=64)
        executor.keep_blocks(BlockFiles(tmp_path, 10**9), ORIGIN)
        return executor

    async def answered(executor: Executor, number: int) -> int:
        await executor.read_ahead(request(PROMPT))
        outputs = [each async for each in executor.generate(request(PROMPT), number)]
        stored = executor.stored_blocks
        assert stored is not None
        while stored._is_writing:
            await asyncio.sleep(0.005)
        return outputs[0].num_cached

    first, second = two_classes(), two_classes()
    assert run([first], lambda: answered(first, 0)) == 0
    assert run([second], lambda: answered(second, 1)) == 0
    assert run([second], lambda: answered(second, 0)) > 0


SIZE = 4096
CONTENTS = {name: random.Random(name).randbytes(SIZE) for name in ("a", "b", "c")}


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    opened = BlockFiles(tmp_path / "cache", 10**6)
    opened.counted.result(10)
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
    files.counted.result(10)
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
    wait((one.counted, other.counted), 10)
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
    BlockFiles(files.folder).counted.result(10)
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
            files.counted.result(10)
            while True:
                for name, content in contents.items():
                    path_of(files, name).unlink(missing_ok=True)
                    files.write(name, content)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        num_unfinished += bool(list(tmp_path.glob("*.part")))
        files = BlockFiles(tmp_path, 10**9)
        files.counted.result(10)
        for name, content in contents.items():
            assert files.read(name, size) in (None, content)
        assert not files.num_damaged, "a file appears whole"
        for path in tmp_path.glob("*.part"):
            path.unlink()
    assert num_unfinished, "some were killed in the middle"
