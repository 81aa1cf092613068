"""Loads the model ``speculative``: the draft-then-verify loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import TokenIds
from pipelines.speculation.watched_draft import WatchedDraft
from pipelines.triton.backend.gauges import Gauges, watch_executor, watch_speculation
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.triton.engine.acceptance_alarm import AcceptanceAlarm
from pipelines.triton.engine.answering import Answering
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.draft_length_setting import DraftLengthSetting, LiveDraftLength
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.engine.model import GenerationModel
from pipelines.triton.engine.sessions import Session, Sessions
from pipelines.triton.engine.token_times import TokenTimes
from pipelines.triton.tensorrt_llm.engines import TensorRtLlmEngines
from pipelines.triton.tensorrt_llm.server_calls import ServerCalls
from pipelines.wire.admission import Admission
from pipelines.wire.call_server import CallServer
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.messages import EngineRequest


class SpeculativeAnswerer:
    """Answers requests with the draft-then-verify loop.

    Args:
        engines: Draft and target.
        admission: Limits concurrent requests.
        setting: Default and maximum of the draft length.
        lengths: Adapts the draft length to acceptance and load; None for engines that do not tell what their
            steps cost, which draft as many tokens as they may.
    """

    def __init__(
        self,
        engines: InProcessEngines | TensorRtLlmEngines,
        admission: Admission,
        setting: LiveDraftLength,
        lengths: DraftLengths | None,
    ) -> None:
        self.vocabulary = engines.vocabulary
        self.end_ids = engines.end_ids
        self.grammars = engines.grammars
        self._max_draft_len = setting.read().max_draft_len
        self.totals = SpeculationStatistics(self._max_draft_len)
        self.alarm = AcceptanceAlarm()
        self.draft = WatchedDraft(engines.draft)
        self._engines = engines
        self._admission = admission
        self._setting = setting
        self._lengths = lengths
        self._sessions = Sessions()

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        """Refuse a request that cannot be answered."""
        self._setting.read().check(asked.num_draft_tokens)
        self._engines.check(request)

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield each chunk, with the counts so far."""
        statistics = SpeculationStatistics(self._max_draft_len)
        drafted: list[int] = []  # in each round
        accepted: list[int] = []
        chunks = ChunkStream(self.vocabulary, request, streaming=asked.streaming)
        wanted = asked.num_draft_tokens
        if wanted is None:
            wanted = self._setting.read().num_draft_tokens
        if wanted is None and self._lengths is None:
            wanted = self._max_draft_len
        used = "adaptive" if wanted is None else str(wanted)
        reason = self._engines.reason_for_target_alone(asked)
        if reason and wanted != 0:
            wanted, used = 0, f"off: {reason}"
        session = self._sessions.of(asked.session_id)
        said: list[TokenIds] = [request.input_ids[request.num_prompt_tokens :]]  # by another server
        async with (
            self._admission.slot(request.deadline_s),
            self._rounds(asked, request, wanted, session) as rounds,
        ):
            async for outcome in rounds:
                said.append(outcome.token_ids)
                if outcome.finish_reason:
                    session.remember(said)
                for counts in (statistics, self.totals):
                    counts.add_round(outcome)
                self.alarm.add(outcome.num_draft_tokens, outcome.num_accepted_tokens)
                drafted.append(outcome.num_draft_tokens)
                accepted.append(outcome.num_accepted_tokens)
                chunk = chunks.push(outcome)
                if chunk is not None:
                    chunk = replace(chunk, counts=counts_so_far(statistics), draft_length=used)
                    if chunk.finish_reason:  # by which rollouts compare pairs
                        chunk = replace(
                            chunk, drafted_per_round=tuple(drafted), accepted_per_round=tuple(accepted)
                        )
                    yield chunk

    @asynccontextmanager
    async def _rounds(
        self, asked: EngineRequest, request: GenerationRequest, wanted: int | None, session: Session
    ) -> AsyncIterator[AsyncIterator[Round]]:
        length: DraftLength
        if wanted is None:
            assert self._lengths is not None
            length = self._lengths.begin(
                request.input_ids,
                session.answer_ids,
                np.array(asked.prediction_ids, np.int32),
                sees_gaps=not asked.use_draft_logits,
            )
        else:
            length = FixedDraftLength(wanted)
        loop = speculate(
            request,
            self.draft,
            self._engines.target,
            length,
            stream=self._engines.stream_alone if wanted == 0 else self._engines.stream,
            use_draft_logits=asked.use_draft_logits,
        )
        try:
            async with aclosing(loop) as rounds:  # type: ignore[type-var]
                yield rounds
        finally:
            length.end()


def counts_so_far(statistics: SpeculationStatistics) -> SpeculationCounts:
    """Return the counts of one answer."""
    num_accepted = statistics.total_accepted_predicted_tokens
    return SpeculationCounts(
        num_rounds=statistics.num_rounds,
        total_draft_tokens=statistics.total_draft_tokens,
        total_accepted_draft_tokens=statistics.total_accepted_draft_tokens,
        accepted_per_position=tuple(statistics.accepted_per_position),
        accepted_prediction_tokens=num_accepted,
        rejected_prediction_tokens=statistics.total_predicted_tokens - num_accepted,
    )


def load_speculative_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Load or connect to the engines, as ``engine_access`` says, and start serving.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        InvalidRequestError: The file with the draft length is invalid.
        RepositoryError: The draft length of the recipe is invalid, or a parameter is missing.
    """
    wire = TritonWire(backend)
    gauges = Gauges(backend, parameters.model_name)
    setting = DraftLengthSetting.of_recipe(parameters)
    live = LiveDraftLength(setting, parameters.path("draft_length_file"))
    engines: InProcessEngines | TensorRtLlmEngines
    lengths: DraftLengths | None = None
    if parameters.text("engine_access") == "tensorrt_llm":
        engines = TensorRtLlmEngines(parameters, ServerCalls())
    else:
        engines = InProcessEngines(parameters)
        draft, target = engines.executors["draft"], engines.executors["target"]
        assert draft.times is not None and target.times is not None
        lengths = expecting = DraftLengths(
            draft.times, target.times, setting.max_draft_len, draft.count_cached
        )
        gauges.add("draftproof_expected_draft_tokens", lambda: expecting.mean_length)
        for role, executor in engines.executors.items():
            watch_executor(gauges, role, executor)
    max_queue_size = parameters.integer("max_queue_size")
    admission = Admission(parameters.integer("max_batch_size"), max_queue_size)
    answerer = SpeculativeAnswerer(engines, admission, live, lengths)
    watch_speculation(gauges, answerer.totals)
    gauges.add("draftproof_recent_acceptance_rate", lambda: answerer.alarm.rate or 0.0)
    gauges.add("draftproof_draft_available", lambda: answerer.draft.is_available)
    gauges.add("draftproof_draft_failures_total", lambda: answerer.draft.num_failures)
    gauges.add("draftproof_draft_refusals_total", lambda: answerer.draft.num_refusals)
    gauges.add("draftproof_requests_running", lambda: admission.num_running, engine="pair")
    gauges.add("draftproof_requests_waiting", lambda: admission.num_waiting, engine="pair")
    gauges.add("draftproof_max_queue_size", lambda: max_queue_size, engine="pair")
    services = {"": Answering(engines.loop, answerer, TokenTimes(gauges))}
    sockets = {"": "socket"}
    if isinstance(engines, InProcessEngines):
        engines.executors["target"].scheduler.has_open_rounds = lambda: admission.num_running > 0
        watch_control(gauges, engines)
        times = TokenTimes(gauges, model=parameters.path("target_socket").stem)
        services["control"] = Answering(engines.loop, engines.control, times)
        sockets["control"] = "target_socket"
    engines.start()
    gauges.start()
    listening = [CallServer(parameters.path(name), services[arm].take) for arm, name in sockets.items()]
    return GenerationModel(parameters, wire, services, listening, gauges.stop)


def watch_control(gauges: Gauges, engines: InProcessEngines) -> None:
    """Publish the requests, tokens and CPU time of the target alone."""
    control, batch_class = engines.control, engines.control_class
    gauges.add("draftproof_requests_running", lambda: len(batch_class.running), engine="control")
    gauges.add("draftproof_requests_waiting", lambda: len(batch_class.waiting), engine="control")
    gauges.add("draftproof_output_tokens_total", lambda: control.num_output_tokens, source="control")
    gauges.add("draftproof_control_cpu_seconds_total", lambda: round(batch_class.cpu_s, 2))
