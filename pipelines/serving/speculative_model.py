"""``speculative``: the draft-then-verify loop behind the same tensors as the target."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

import numpy as np

from pipelines.errors import InvalidRequestError, RepositoryError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.admission import Admission
from pipelines.serving.bls_engines import BlsEngines
from pipelines.serving.chunks import ChunkStream
from pipelines.serving.contract import GenerationCall
from pipelines.serving.engine_model import chunk_tensors
from pipelines.serving.gauges import Gauges, watch_executor, watch_speculation
from pipelines.serving.generation_model import GenerationModel, Outputs
from pipelines.serving.in_process_engines import InProcessEngines
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.triton_wire import TritonWire, scalar_tensor
from pipelines.speculation.loop import EngineCall, speculate
from pipelines.speculation.request import Output
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.text.vocabulary import Vocabulary


class EnginePair(Protocol):
    """How the loop reaches draft and target; ``in_process_engines`` and ``bls_engines`` are the two ways."""

    vocabulary: Vocabulary
    end_id: int | None
    loop: StepLoop

    @property
    def draft(self) -> EngineCall:
        """Proposes."""

    @property
    def target(self) -> EngineCall:
        """Verifies."""

    def check(self, call: GenerationCall) -> None:
        """Refuse what the engines would refuse; raises InvalidRequestError."""


class SpeculativeAnswerer:
    """Answers with what the loop gives.

    Args:
        engines: Draft and target.
        admission: Who may speculate now.
        num_draft_tokens: Default of the server.
        max_draft_len: Upper limit for a request.
    """

    def __init__(
        self, engines: EnginePair, admission: Admission, num_draft_tokens: int, max_draft_len: int
    ) -> None:
        self.vocabulary = engines.vocabulary
        self.end_id = engines.end_id
        self.totals = SpeculationStatistics(max_draft_len)
        self._engines = engines
        self._admission = admission
        self._num_draft_tokens = num_draft_tokens
        self._max_draft_len = max_draft_len

    def check(self, call: GenerationCall) -> None:
        """Refuse what cannot be answered."""
        if call.num_draft_tokens is not None:
            check_num_draft_tokens(call.num_draft_tokens, self._max_draft_len)
        self._engines.check(call)

    async def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Outputs, bool]]:
        """One response per chunk, with the counts so far."""
        wanted = self._num_draft_tokens if call.num_draft_tokens is None else call.num_draft_tokens
        request = call.request
        statistics = SpeculationStatistics(self._max_draft_len)
        chunks = ChunkStream(self.vocabulary, request, streaming=call.streaming)
        loop = speculate(
            request,
            self._engines.draft,
            self._engines.target,
            wanted,
            use_draft_logits=call.use_draft_logits,
        )
        async with self._admission.slot(request.deadline_s), aclosing(loop) as rounds:  # type: ignore[type-var]
            async for outcome in rounds:
                for counts in (statistics, self.totals):
                    counts.add_round(outcome.num_draft_tokens, outcome.num_accepted_tokens)
                output = Output(
                    outcome.token_ids,
                    outcome.finish_reason,
                    is_final=bool(outcome.finish_reason),
                    log_probs=outcome.log_probs,
                )
                chunk = chunks.push(output, outcome.num_accepted_tokens)
                if chunk is not None:
                    outputs = {
                        **chunk_tensors(chunk, call),
                        "accepted_mask": chunk.accepted_mask.reshape(1, -1),
                        **count_tensors(statistics),
                    }
                    yield outputs, chunk.is_final


def check_num_draft_tokens(num_draft_tokens: int, max_draft_len: int) -> None:
    """Refuse a draft length that the engines were not made for.

    Raises:
        InvalidRequestError: It is outside 0..max_draft_len.
    """
    if not 0 <= num_draft_tokens <= max_draft_len:
        raise InvalidRequestError(
            "num_draft_tokens is out of range",
            values=f"num_draft_tokens={num_draft_tokens}",
            limit=f"0 to max_draft_len={max_draft_len}",
            remedy="send 0 to switch speculation off, or leave it out for the server's default",
        )


def count_tensors(counts: SpeculationStatistics) -> Outputs:
    """The counts of one answer.

    ``acceptance_rate`` is 0 where nothing was drafted, as ``total_draft_tokens`` tells: NaN, which would
    say so itself, has no place in the JSON of HTTP responses.
    """
    rate = counts.acceptance_rate
    return {
        "num_rounds": scalar_tensor(counts.num_rounds, np.int32),
        "total_draft_tokens": scalar_tensor(counts.total_draft_tokens, np.int32),
        "total_accepted_draft_tokens": scalar_tensor(counts.total_accepted_draft_tokens, np.int32),
        "accepted_per_position": np.array([counts.accepted_per_position], dtype=np.int32),
        "acceptance_rate": scalar_tensor(0.0 if rate is None else rate, np.float32),
    }


def load_speculative_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Reach the engines in the way that ``engine_access`` names and start serving.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        RepositoryError: ``engine_access`` is neither ``in_process`` nor ``bls``.
    """
    wire = TritonWire(backend)
    gauges = Gauges(backend, parameters.model_name)
    access = parameters.text("engine_access")
    engines: InProcessEngines | BlsEngines
    if access == "in_process":
        engines = InProcessEngines(parameters)
        for role, executor in engines.executors.items():
            watch_executor(gauges, role, executor)
    elif access == "bls":
        engines = BlsEngines(parameters, wire)
    else:
        raise RepositoryError(
            "engine_access is unknown",
            values=f"engine_access={access!r}",
            limit="'in_process' or 'bls'",
            remedy="mend the recipe and run 'make repository'",
        )
    admission = Admission(parameters.integer("max_batch_size"), parameters.integer("max_queue_size"))
    answerer = SpeculativeAnswerer(
        engines, admission, parameters.integer("num_draft_tokens"), parameters.integer("max_draft_len")
    )
    watch_speculation(gauges, answerer.totals)
    gauges.add("draftproof_requests_running", lambda: admission.num_running, engine="pair")
    gauges.add("draftproof_requests_waiting", lambda: admission.num_waiting, engine="pair")
    engines.start()
    gauges.start()
    return GenerationModel(parameters, wire, engines.loop, answerer, gauges.stop)
