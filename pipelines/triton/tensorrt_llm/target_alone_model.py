"""Loads the model ``target_alone``: TensorRT-LLM's target behind the embedded runtime's tensors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pipelines.asyncio_thread import AsyncioThread
from pipelines.speculation.request import GenerationRequest
from pipelines.triton.backend.gauges import Gauges
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.triton.engine.answering import Answering
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.grammars import Grammars
from pipelines.triton.engine.model import GenerationModel
from pipelines.triton.engine.token_times import TokenTimes
from pipelines.triton.tensorrt_llm.server_calls import ServerCalls
from pipelines.triton.tensorrt_llm.target import TensorRtLlmTarget
from pipelines.wire.admission import Admission
from pipelines.wire.call_server import CallServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest


class TargetAloneAnswerer:
    """Answers requests with the target.

    Args:
        target: The target.
        admission: Limits concurrent requests.
    """

    def __init__(self, target: TensorRtLlmTarget, admission: Admission) -> None:
        self.vocabulary = target.vocabulary
        self.end_ids = target.end_ids
        self.grammars: Grammars | None = None
        self._target = target
        self._admission = admission

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        """Refuse a request that the target cannot answer."""
        self._target.check(request)

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield each chunk."""
        chunks = ChunkStream(self.vocabulary, request, streaming=asked.streaming)
        async with (
            self._admission.slot(request.deadline_s),
            aclosing(self._target.generate(request)) as outputs,
        ):
            async for output in outputs:
                chunk = chunks.push(output)
                if chunk is not None:
                    yield chunk


def load_target_alone_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Connect to the model ``target`` of the same server and start serving it.

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
    loop = AsyncioThread("requests")
    loop.start()
    gauges.start()
    service = Answering(loop, TargetAloneAnswerer(target, admission), times)
    sockets = [CallServer(parameters.path("socket"), service.take)]
    return GenerationModel(parameters, wire, {"": service}, sockets, gauges.stop)
