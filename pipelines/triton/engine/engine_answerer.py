"""Answers requests with one engine, without the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.speculation.request import GenerationRequest
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.grammars import Grammars
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest


class EngineAnswerer:
    """Answers requests with one executor.

    Attributes:
        num_output_tokens: Tokens of all answers so far.

    Args:
        executor: The executor; it must run on the same step loop as ``answer``.
        grammars: Compiles guides for its engine; None to refuse them.
        class_number: Batch class of the requests.
    """

    def __init__(self, executor: Executor, grammars: Grammars | None, class_number: int = 0) -> None:
        self.grammars = grammars
        self.num_output_tokens = 0
        self._executor = executor
        self._class_number = class_number
        self.vocabulary = executor.vocabulary
        self.end_ids = executor.config.end_ids

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        """Refuse what the executor would refuse."""
        self._executor.check(request)

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield each chunk."""
        chunks = ChunkStream(self.vocabulary, request, streaming=asked.streaming)
        async with aclosing(self._executor.generate(request, self._class_number)) as outputs:
            async for output in outputs:
                self.num_output_tokens += len(output.token_ids)
                chunk = chunks.push(output)
                if chunk is not None:
                    yield chunk


def executor_limits(parameters: ModelParameters, role: str) -> ExecutorLimits:
    """Read the limits of the engine of a role from a model's parameters."""
    return ExecutorLimits(
        max_batch_size=parameters.integer("max_batch_size"),
        max_num_tokens=parameters.integer("max_num_tokens"),
        max_seq_len=parameters.integer("max_seq_len"),
        max_queue_size=parameters.integer("max_queue_size"),
        num_kv_blocks=parameters.integer(f"{role}_num_kv_blocks"),
    )
