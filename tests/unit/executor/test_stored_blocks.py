"""Tests that blocks outlive their executor, and that whatever is on disk changes no answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
