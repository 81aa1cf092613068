"""Measure the overhead of the in-flight batcher and the loop per engine step.

Runs the real executors, step loop and draft-then-verify loop on engines that compute nothing.
``python -m pipelines.bench.costs.batcher_overhead`` prints the result.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pipelines.executor.engine import EngineConfig
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step import StepInputs
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.text.vocabulary import Vocabulary

VOCAB_SIZE = 2048
PROMPT_LEN = 64
OUTPUT_LEN = 256
LIMITS = ExecutorLimits(
    max_batch_size=16, max_num_tokens=512, max_seq_len=1024, max_queue_size=64, num_kv_blocks=512
)


@dataclass(frozen=True)
class BatcherOverhead:
    """Time spent outside the engines.

    Attributes:
        num_at_once: Number of concurrent requests.
        num_draft_tokens: Draft length; 0 is plain decoding by the target alone.
        ms_per_step: Milliseconds per engine call, whether of draft or target.
        num_steps: Number of engine calls.
    """

    num_at_once: int
    num_draft_tokens: int
    ms_per_step: float
    num_steps: int


class _IdleEngine:
    """Engine without computation: the token after position p is always p modulo the vocabulary."""

    def __init__(self, role: str) -> None:
        self.config = EngineConfig(
            role=role,
            recipe="batcher-overhead",
            openvino_version="",
            vocab_size=VOCAB_SIZE,
            num_layers=0,
            num_kv_heads=0,
            head_size=0,
            max_position_embeddings=LIMITS.max_seq_len,
            end_ids=(),
            kv_block_size=32,
            kv_cache_dtype="float32",
            attention="openvino",
            linear="openvino",
            num_threads=0,
            weight_bytes_per_step=0,
            compile_properties={},
        )
        self._logits = np.eye(VOCAB_SIZE, dtype=np.float32)

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Return the logits of the requested rows."""
        logits: npt.NDArray[np.float32] = self._logits[inputs.position_ids[inputs.logits_rows] % VOCAB_SIZE]
        return logits

    def copy_block(self, source: int, destination: int) -> None:
        """Copy nothing, because there is no cache."""


def measure_overhead(num_at_once: int, num_draft_tokens: int) -> BatcherOverhead:
    """Answer ``num_at_once`` concurrent requests and measure the time outside the engines."""
    vocabulary = Vocabulary(tuple(b"%d " % token_id for token_id in range(VOCAB_SIZE)))
    draft, target = (Executor(_IdleEngine(role), vocabulary, LIMITS) for role in ("draft", "target"))
    loop = StepLoop((draft, target))

    async def answer(index: int) -> None:
        prompt = np.arange(index, index + PROMPT_LEN, dtype=np.int32)
        request = GenerationRequest(f"overhead-{index}", prompt, OUTPUT_LEN)
        if num_draft_tokens:
            async for _ in speculate(
                request, draft.complete, target.complete, FixedDraftLength(num_draft_tokens)
            ):
                pass
        else:
            async for _ in target.generate(request):
                pass

    async def answer_all() -> None:
        await asyncio.gather(*(answer(index) for index in range(num_at_once)))

    loop.start()
    try:
        loop.spawn(answer_all()).result()
    finally:
        loop.stop()
    num_steps = draft.num_steps + target.num_steps
    outside_s = loop.busy_time_s - draft.engine_time_s - target.engine_time_s
    return BatcherOverhead(num_at_once, num_draft_tokens, outside_s / num_steps * 1e3, num_steps)


def measure_all() -> list[BatcherOverhead]:
    """Measure plain decoding and four draft tokens, with 1 and 8 concurrent requests."""
    return [measure_overhead(at_once, length) for at_once in (1, 8) for length in (0, 4)]


def main() -> int:
    """Print the measurements as a JSON list."""
    print(json.dumps([asdict(entry) for entry in measure_all()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
