"""``target_alone``: TensorRT-LLM's target behind the tensors of the embedded runtime's ``target``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pipelines.executor.step_loop import StepLoop
from pipelines.serving.admission import Admission
from pipelines.serving.chunks import ChunkStream
from pipelines.serving.contract import GenerationCall
from pipelines.serving.engine_model import chunk_tensors
from pipelines.serving.gauges import Gauges
from pipelines.serving.generation_model import GenerationModel, Outputs
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.server_calls import ServerCalls
from pipelines.serving.tensorrt_llm_target import TensorRtLlmTarget
from pipelines.serving.token_times import TokenTimes
from pipelines.serving.triton_wire import TritonWire


class TargetAloneAnswerer:
    """Answers with what the target generates.

    Args:
        target: Asked once per request.
        admission: Who may ask now.
    """

    def __init__(self, target: TensorRtLlmTarget, admission: Admission) -> None:
        self.vocabulary = target.vocabulary
        self.end_ids = target.end_ids
        self._target = target
        self._admission = admission

    def check(self, call: GenerationCall) -> None:
        """Refuse what the target cannot answer."""
        self._target.check(call.request)

    async def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Outputs, bool]]:
        """One response per chunk."""
        chunks = ChunkStream(self.vocabulary, call.request, streaming=call.streaming)
        async with (
            self._admission.slot(call.request.deadline_s),
            aclosing(self._target.generate(call.request)) as outputs,
        ):
            async for output in outputs:
                chunk = chunks.push(output)
                if chunk is not None:
                    yield chunk_tensors(chunk, call), chunk.is_final


def load_target_alone_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Start serving the model ``target`` of the same server.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """
    wire = TritonWire(backend)
    admission = Admission(parameters.integer("max_batch_size"), parameters.integer("max_queue_size"))
    target = TensorRtLlmTarget(parameters, ServerCalls())
    gauges = Gauges(backend, parameters.model_name)
    gauges.add("draftproof_requests_running", lambda: admission.num_running, engine="target")
    gauges.add("draftproof_requests_waiting", lambda: admission.num_waiting, engine="target")
    times = TokenTimes(gauges)
    loop = StepLoop(())
    loop.start()
    gauges.start()
    return GenerationModel(parameters, wire, loop, TargetAloneAnswerer(target, admission), times, gauges.stop)
