"""``draft`` and ``target``: one engine behind TensorRT-LLM's tensors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np

from pipelines.executor.executor import Executor, ExecutorLimits
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.chunks import Chunk, ChunkStream
from pipelines.serving.contract import GenerationCall
from pipelines.serving.gauges import Gauges, watch_executor
from pipelines.serving.generation_model import GenerationModel, Outputs
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.token_times import TokenTimes
from pipelines.serving.triton_wire import TritonWire, scalar_tensor, text_tensor


class EngineAnswerer:
    """Answers with what one executor generates.

    Args:
        executor: Runs on the step loop that runs ``answer``.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.vocabulary = executor.vocabulary
        self.end_ids = executor.config.end_ids

    def check(self, call: GenerationCall) -> None:
        """Refuse what the executor would refuse."""
        self._executor.check(call.request)

    async def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Outputs, bool]]:
        """One response per chunk."""
        chunks = ChunkStream(self.vocabulary, call.request, streaming=call.streaming)
        async with aclosing(self._executor.generate(call.request)) as outputs:
            async for output in outputs:
                chunk = chunks.push(output)
                if chunk is not None:
                    yield response_tensors(chunk, call), chunk.is_final


def response_tensors(chunk: Chunk, call: GenerationCall) -> Outputs:
    """All outputs of ``draft`` and ``target``."""
    logits = chunk.generation_logits[np.newaxis, np.newaxis]
    return {**chunk_tensors(chunk, call), "generation_logits": logits}


def chunk_tensors(chunk: Chunk, call: GenerationCall) -> Outputs:
    """The outputs that all three models have, in every response; empty where not asked for."""
    log_probs = chunk.log_probs
    return {
        "output_ids": chunk.token_ids.reshape(1, 1, -1),
        "sequence_length": scalar_tensor(chunk.sequence_length, np.int32),
        "text_length": scalar_tensor(chunk.text_length, np.int32),
        "finish_reason": text_tensor(chunk.finish_reason),
        "output_seed": scalar_tensor(call.request.sampling.seed, np.uint64),
        "output_log_probs": log_probs.token_log_probs.reshape(1, 1, -1),
        "cum_log_probs": scalar_tensor(chunk.cum_log_prob, np.float32),
        "top_log_prob_ids": log_probs.top_ids[np.newaxis],
        "top_log_probs": log_probs.top_log_probs[np.newaxis],
    }


def executor_limits(parameters: ModelParameters, *, role: str = "") -> ExecutorLimits:
    """Limits from a model's parameters; ``role`` is put before what differs between two engines."""
    return ExecutorLimits(
        max_batch_size=parameters.integer("max_batch_size"),
        max_num_tokens=parameters.integer("max_num_tokens"),
        max_seq_len=parameters.integer("max_seq_len"),
        max_queue_size=parameters.integer("max_queue_size"),
        num_kv_blocks=parameters.integer(f"{role}num_kv_blocks"),
    )


def load_engine_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Load the engine that the parameters name and start serving it.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The engine cannot be loaded.
    """
    wire = TritonWire(backend)
    executor = Executor.load(parameters.path("engine_dir"), executor_limits(parameters))
    loop = StepLoop((executor,))
    loop.start()
    gauges = Gauges(backend, parameters.model_name)
    watch_executor(gauges, executor.config.role, executor)
    times = TokenTimes(gauges)
    gauges.start()
    return GenerationModel(parameters, wire, loop, EngineAnswerer(executor), times, gauges.stop)
