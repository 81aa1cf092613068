"""A test engine that detects every mistake an executor can make with the KV cache.

Where a network caches keys and values, it caches the token of each position and whether it was computed in a
chunk or as a decode token. The logits after a position are a hash of everything its sequence can see, so
reading a stale block, missing a token or computing a position the other way changes the output.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.executor import Executor
from pipelines.executor.kv_cache import SCRATCH_BLOCK, CachedBlock, KvCache
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step import StepInputs
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.text.vocabulary import Vocabulary

BLOCK_SIZE = 4
VOCAB_SIZE = 16
END_ID = 0
NUM_BLOCKS = 64
_CHUNK, _DECODED = 1, 2


def recording_config(
    role: str = "target", max_position_embeddings: int = 512, attention: str = "openvino"
) -> EngineConfig:
    """Return the configuration of an engine that exists only in a test."""
    return EngineConfig(
        role=role,
        recipe="test",
        openvino_version="0",
        vocab_size=VOCAB_SIZE,
        num_layers=1,
        num_kv_heads=1,
        head_size=1,
        max_position_embeddings=max_position_embeddings,
        end_ids=(END_ID,),
        kv_block_size=BLOCK_SIZE,
        kv_cache_dtype="float32",
        attention=attention,
        linear="openvino",
        num_threads=1,
        weight_bytes_per_step=0,
        compile_properties={},
    )


class RecordingEngine:
    """An engine that stores tokens as keys and refuses steps that break the real engine's rules.

    Args:
        num_blocks: The blocks of its cache.
        agreement: How many of 16 contexts share their logits with the engine of salt 0; below 16 such a
            draft is accepted in part.
        salt: Makes another network.
        attention: With "draftproof", chunks and decode tokens have the same bits.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        salt: int = 0,
        agreement: int = 16,
        role: str = "target",
        attention: str = "openvino",
    ) -> None:
        self.config = recording_config(role, attention=attention)
        self.is_busy = False
        self.num_steps = 0
        self.num_computed: Counter[int] = Counter()
        self.fail_next = False
        self._salt = salt
        self._agreement = agreement
        self._tokens = np.full((num_blocks, BLOCK_SIZE), -1)
        self._kinds = np.zeros((num_blocks, BLOCK_SIZE), int)
        self.kernels = ""
        self.block_bytes = self._tokens[0].nbytes + self._kinds[0].nbytes

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("injected failure with a secret traceback")
        self.num_steps += 1
        tables = [
            inputs.block_indices[begin:end]
            for begin, end in zip(inputs.block_indices_begins, inputs.block_indices_begins[1:], strict=False)
        ]
        contexts: dict[int, bytes] = {}
        wanted = set(inputs.logits_rows.tolist())
        spans = list(zip(inputs.subsequence_begins, inputs.subsequence_begins[1:], strict=False))
        for (begin, end), past, table in zip(spans, inputs.past_lens, tables, strict=True):
            for offset in range(end - begin):
                position = int(past) + offset
                assert inputs.position_ids[begin + offset] == position
                block, slot = table[position // BLOCK_SIZE], position % BLOCK_SIZE
                self._tokens[block, slot] = inputs.input_ids[begin + offset]
                is_decoded = end - begin == 1 or self.config.has_one_form
                self._kinds[block, slot] = _DECODED if is_decoded else _CHUNK
                self.num_computed[position] += 1
        for (begin, end), past, table in zip(spans, inputs.past_lens, tables, strict=True):
            for offset in range(end - begin):
                length = int(past) + offset + 1
                assert length <= inputs.max_context_len
                if begin + offset in wanted:
                    seen = (each[table].ravel()[:length].tobytes() for each in (self._tokens, self._kinds))
                    contexts[begin + offset] = b"".join(seen)
        return (
            np.stack([self._logits(contexts[row]) for row in inputs.logits_rows.tolist()])
            if len(inputs.logits_rows)
            else np.empty((0, VOCAB_SIZE), np.float32)
        )

    def _logits(self, context: bytes) -> npt.NDArray[np.float32]:
        digest = hashlib.sha256(context).digest()
        salt = 0 if digest[0] % 16 < self._agreement else self._salt
        digest = hashlib.sha256(digest + bytes([salt])).digest()
        return np.frombuffer(digest, np.uint8)[:VOCAB_SIZE].astype(np.float32) / 32

    def compile_small_network(self) -> bool:
        return False

    def adopt_small_networks(self) -> None:
        pass

    def copy_block(self, source: int, destination: int) -> None:
        self._tokens[destination] = self._tokens[source]
        self._kinds[destination] = self._kinds[source]

    def read_block(self, block: int) -> bytes:
        return self._tokens[block].tobytes() + self._kinds[block].tobytes()

    def write_block(self, block: int, content: memoryview) -> None:
        self._tokens[block], self._kinds[block] = np.frombuffer(content, int).reshape(2, BLOCK_SIZE)


def letters() -> Vocabulary:
    """Return a tokenizer in which token i spells the i-th letter and the end token nothing."""
    return Vocabulary((b"", *(bytes([ord("a") + i]) for i in range(VOCAB_SIZE - 1))))


def make_executor(
    engine: RecordingEngine, num_blocks: int = 64, num_classes: int = 1, **limits: int
) -> Executor:
    """Return an executor over a recording engine with small limits, each of which can be set."""
    defaults = {"max_batch_size": 8, "max_num_tokens": 32, "max_seq_len": 96, "max_queue_size": 16}
    all_limits = ExecutorLimits(**{**defaults, **limits}, num_kv_blocks=num_blocks)
    return Executor(engine, letters(), all_limits, num_classes=num_classes)


def draft_and_target(
    num_blocks: int = NUM_BLOCKS, agreement: int = 11, **limits: int
) -> tuple[Executor, Executor]:
    """Return the executors of a pair whose draft agrees after so many of 16 contexts."""
    draft = RecordingEngine(num_blocks, salt=1, agreement=agreement, role="draft")
    return (
        make_executor(draft, num_blocks),
        make_executor(RecordingEngine(num_blocks), num_blocks, **limits),
    )


def held_blocks(cache: KvCache) -> set[int]:
    """Return the blocks that a cache holds, and assert that its tree is consistent."""
    free, unused = set(cache._pool.free), set(cache._unused)
    used = {block for block, users in enumerate(cache._num_users) if users}
    assert len(free) == len(cache._pool.free)
    assert not used & unused and not free & (used | unused) and len(used) == cache.num_used
    assert SCRATCH_BLOCK not in free | unused | used
    reachable: dict[int, CachedBlock] = {}
    pending = list(cache._roots.values())
    while pending:
        for child in pending.pop().children.values():
            assert child.block not in reachable and cache._node_of[child.block] is child
            reachable[child.block] = child
            pending.append(child)
    assert reachable.keys() == {block for block, node in enumerate(cache._node_of) if node is not None}
    assert unused <= reachable.keys() and not free & reachable.keys()
    return used | unused


def check_blocks(executor: Executor) -> None:
    """Assert that every block is free or in one batch class, and that no quota is exceeded."""
    held = [held_blocks(each.cache) for each in executor.scheduler.classes]
    free = set(executor.scheduler.classes[0].cache._pool.free)
    assert len(free) + sum(map(len, held)) == executor.scheduler.num_blocks
    assert len(free.union(*held)) == executor.scheduler.num_blocks
    assert sum(each.cache.quota for each in executor.scheduler.classes) == executor.scheduler.num_blocks
    assert all(each.cache.num_used <= each.cache.quota for each in executor.scheduler.classes)


def request(prompt: list[int], max_tokens: int = 12, **fields: Any) -> GenerationRequest:
    return GenerationRequest("test", np.array(prompt, np.int32), max_tokens, **fields)


def run(executors: list[Executor], make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run one coroutine on a step loop, and check that every cache is left consistent."""
    loop = StepLoop(executors)
    loop.start()
    try:
        return loop.spawn(make()).result(timeout=120)
    finally:
        loop.stop()
        for executor in executors:
            check_blocks(executor)


def alone(req: GenerationRequest, attention: str = "openvino") -> list[int]:
    """Return the target's own answer, from a cold cache."""
    executor = make_executor(RecordingEngine(NUM_BLOCKS, attention=attention))
    return run([executor], lambda: executor.complete(req)).token_ids.tolist()


async def rounds_of(
    req: GenerationRequest, draft: Any, target: Executor, length: int, **how: Any
) -> list[Round]:
    """Answer with a fixed draft length; ``target`` streams the rounds without drafts."""
    how = {"stream": target.generate, **how}
    return [part async for part in speculate(req, draft, target.complete, FixedDraftLength(length), **how)]


def tokens_of(rounds: list[Round]) -> list[int]:
    return np.concatenate([part.token_ids for part in rounds]).tolist()
