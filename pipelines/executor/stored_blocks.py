"""Keeps the blocks of a cache on disk, and brings them back before a prompt is computed.

A block that a request has filled is wanted on disk. While there are such blocks, the event loop copies one
at a time for the thread that writes, so nothing waits for the disk, and a block that is evicted first is
left out. Writing gets a small share of the cores, because a step is as slow as its slowest core. What a
prompt lacks in the cache, a thread reads as far as the disk has it; then it is in the cache as if an
earlier request had computed it. Reading stops where computing would be faster.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from pipelines.available_resources import available_cores
from pipelines.executor.block_files import PAUSE_S, BlockFiles
from pipelines.executor.engine import StepEngine
from pipelines.executor.kv_cache import CachedBlock, KvCache
from pipelines.manifest import sha256_json
from pipelines.speculation.token_ids import TokenIds

_FORMAT = 1  # of files; those of another are never asked for
_FRESH_S = 600.0  # after which the use of a block in memory is noted on disk again
_MOST_WANTED = 4096
_MOST_AHEAD_BYTES = 64 << 20  # read and not yet in the cache
# What reading may take beside half the time to compute what it brings: so much, and this share of the time to
# compute all that is lacking. A new server stood still for half a second, gave up and computed for 30 s.
_PATIENCE_S, _PATIENT_SHARE = 0.25, 0.1
# Of the time of all cores. A block of 16 tokens is computed in 100 ms or more and written in 0.5 ms of two
# cores, so this is faster than prompts are computed.
_WRITING_SHARE = 0.005
_LONGEST_PAUSE_S = 1.0  # also after old files were deleted, which takes longer


class StoredBlocks:
    """The blocks of one cache on disk. Used on the event loop of its executor.

    Attributes:
        num_read_tokens: Tokens whose keys and values were read.
        saved_s: Time that it would have taken to compute them, less the time to read them where that is less.
        num_left_out: Blocks that were evicted before they were written.

    Args:
        cache: The cache.
        engine: Has the contents of the blocks.
        files: Keeps them.
        origin: Whatever decides the contents beside tokens and kernels.
        computing_s: Returns the time to compute the positions between two.
    """

    def __init__(
        self,
        cache: KvCache,
        engine: StepEngine,
        files: BlockFiles,
        origin: Mapping[str, str],
        computing_s: Callable[[int, int], float],
    ) -> None:
        self.num_read_tokens = 0
        self.saved_s = 0.0
        self.num_left_out = 0
        self._cache = cache
        self._engine = engine
        self._files = files
        self._computing_s = computing_s
        described = {"format": _FORMAT, "kernels": engine.kernels, "block_bytes": engine.block_bytes}
        self._origin = bytes.fromhex(sha256_json({**origin, **described}))
        self._wanted: deque[CachedBlock] = deque(maxlen=_MOST_WANTED)
        self._writing_share = _WRITING_SHARE * available_cores()
        self._is_writing = False
        self._slow_until_s = 0.0
        cache.on_full = self._want

    def _want(self, node: CachedBlock) -> None:
        """Note that a block belongs on disk, and was used now."""
        now_s = time.monotonic()
        if now_s < node.wanted_s + _FRESH_S or not self._files.takes_writes:
            return
        node.wanted_s = now_s
        self.num_left_out += len(self._wanted) == _MOST_WANTED
        self._wanted.append(node)
        if not self._is_writing:
            self._write_next()

    def _write_next(self) -> None:
        """Hand the next block to the thread that writes; that has this called again."""
        self._is_writing = False
        while self._wanted and self._files.takes_writes and not self._is_writing:
            node = self._wanted.popleft()
            if self._cache.holds(node):
                self._is_writing = True
                self._write(node)
            else:
                self.num_left_out += 1

    def _write(self, node: CachedBlock) -> None:
        content, name = self._engine.read_block(node.block), self._file_name(node.name)
        loop = asyncio.get_running_loop()

        def write() -> None:
            began_s = time.thread_time()
            try:
                self._files.write(name, content, node.depth)
            finally:
                pause_s = min((time.thread_time() - began_s) / self._writing_share, _LONGEST_PAUSE_S)
                _tell(loop, lambda: loop.call_later(pause_s, self._write_next))

        self._files.writer.submit(write)

    async def read_ahead(self, token_ids: TokenIds, num_prompt: int, salt: str) -> None:
        """Bring what a text lacks in the cache, and the disk has, into the cache.

        Args:
            token_ids: int32 [n], the known tokens.
            num_prompt: Leading tokens that are computed as prompt.
            salt: Salt of the request.
        """
        token_ids = token_ids[:-1]  # the last one is computed in any case
        nodes = list(self._cache.path(token_ids, num_prompt, salt))
        for node in nodes:
            self._want(node)
        names = list(self._cache.names(token_ids, num_prompt, salt))[len(nodes) :]
        if not names or time.monotonic() < self._slow_until_s:
            return
        reading = _Reading(self._files, [*map(self._file_name, names)], len(nodes), self._engine.block_bytes)
        began_s, begin, size = time.monotonic(), len(nodes), self._cache.block_size
        compute_s = partial(self._computing_s, len(nodes) * size)
        patience_s = _PATIENCE_S + _PATIENT_SHARE * compute_s((len(nodes) + len(names)) * size)
        try:
            while True:
                contents = await reading.next(began_s + patience_s + compute_s((begin + 1) * size) / 2)
                if contents is None:
                    self._slow_until_s = time.monotonic() + PAUSE_S
                    self._files.say("slow", f"is slower than computing, and not read for {PAUSE_S:.0f} s")
                if not contents or self._engine.is_busy:  # a step that was given up still writes into blocks
                    break
                path = self._cache.add(token_ids, num_prompt, salt, begin, contents, self._engine.write_block)
                for node in path[begin:]:
                    node.wanted_s = time.monotonic()
                end = begin + len(contents)
                begin = max(begin, min(end, len(path)))
                if begin < end:
                    break
        finally:
            reading.stop()
            self.num_read_tokens += (begin - len(nodes)) * size
            if begin > len(nodes):
                self.saved_s += max(compute_s(begin * size) - (time.monotonic() - began_s), 0.0)

    def _file_name(self, name: bytes) -> str:
        return hashlib.blake2b(name, key=self._origin, digest_size=len(name)).hexdigest()


class _Reading:
    """Contents that a thread reads one after the other, as far as they are on disk.

    Args:
        files: The files.
        names: Their names, in the order in which they need each other.
        depth: Contents that the first one needs.
        num_bytes: Bytes of each.
    """

    def __init__(self, files: BlockFiles, names: Sequence[str], depth: int, num_bytes: int) -> None:
        self._contents: deque[memoryview] = deque()
        self._room = threading.Semaphore(max(_MOST_AHEAD_BYTES // num_bytes, 1))
        self._has_ended = False
        self._news = asyncio.Event()
        tell = partial(_tell, asyncio.get_running_loop(), self._news.set)

        def read() -> None:
            try:
                for number, name in enumerate(names):
                    self._room.acquire()
                    content = None if self._has_ended else files.read(name, num_bytes, depth + number)
                    if content is None:
                        return
                    self._contents.append(content)
                    tell()
            finally:
                self._has_ended = True
                tell()

        files.readers.submit(read)

    async def next(self, until_s: float) -> list[memoryview] | None:
        """Return further contents, none at the end; None if there is none until a moment."""
        while not (self._contents or self._has_ended):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            self._news.clear()
            timer = asyncio.get_running_loop().call_later(left_s, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
        contents = [self._contents.popleft() for _ in range(len(self._contents))]
        if contents:
            self._room.release(len(contents))
        return contents

    def stop(self) -> None:
        """Let the thread read no more."""
        self._has_ended = True
        self._room.release()


def _tell(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    """Let an event loop do something, unless it has been closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
