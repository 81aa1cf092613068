"""Loads the model ``target_alone``: TensorRT-LLM's target behind the embedded runtime's tensors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pipelines.asyncio_thread import AsyncioThread
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.triton.backend.gauges import Gauges, TokenTimes
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.answering import Answering, GenerationModel, TargetAlone
from pipelines.triton.tensorrt_llm.server_calls import ServerCalls
from pipelines.triton.tensorrt_llm.target import TensorRtLlmTarget
from pipelines.wire.admission import Admission
from pipelines.wire.calls import CallServer


def load_target_alone_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Connect to the model ``target`` of the same server and start serving it.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """
    admission = Admission(parameters.integer("max_batch_size"), parameters.integer("max_queue_size"))
    target = TensorRtLlmTarget(parameters, ServerCalls())

    async def generate(request: GenerationRequest) -> AsyncGenerator[Output, None]:
        async with admission.slot(request.deadline_s), aclosing(target.generate(request)) as outputs:
            async for output in outputs:
                yield output

    gauges = Gauges(backend, parameters.model_name, parameters.text("served_model_name"))
    gauges.add("draftproof_requests_running", lambda: admission.num_running, engine="target")
    gauges.add("draftproof_requests_waiting", lambda: admission.num_waiting, engine="target")
    loop = AsyncioThread("requests")
    alone = TargetAlone(target.vocabulary, target.end_ids, target.check, generate)
    service = Answering(loop, alone, TokenTimes(gauges))
    loop.start()
    gauges.start()
    sockets = [CallServer(parameters.path("socket"), service.take)]
    return GenerationModel(parameters, backend, {"": service}, sockets, gauges.stop)
