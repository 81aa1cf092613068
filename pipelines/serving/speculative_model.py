"""``speculative``: the draft-then-verify loop behind the same tensors as the target."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

import numpy as np

from pipelines.errors import RepositoryError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.acceptance_alarm import AcceptanceAlarm
from pipelines.serving.admission import Admission
from pipelines.serving.bls_engines import BlsEngines
from pipelines.serving.chunks import ChunkStream
from pipelines.serving.contract import GenerationCall
from pipelines.serving.draft_length_setting import DraftLengthSetting, LiveDraftLength
from pipelines.serving.engine_model import chunk_tensors
from pipelines.serving.gauges import Gauges, watch_executor, watch_speculation
from pipelines.serving.generation_model import GenerationModel, Outputs
from pipelines.serving.in_process_engines import InProcessEngines
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.server_calls import ServerCalls
from pipelines.serving.sessions import Sessions
from pipelines.serving.tensorrt_llm_engines import TensorRtLlmEngines
from pipelines.serving.token_times import TokenTimes
from pipelines.serving.triton_wire import TritonWire, scalar_tensor, text_tensor
from pipelines.speculation.calibration import Calibration
from pipelines.speculation.draft_length import DraftLengths
from pipelines.speculation.draft_plan import DraftLength, DraftLengthController, FixedDraftLength
from pipelines.speculation.loop import EngineCall, EngineStream, Round, speculate
from pipelines.speculation.request import Output
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.step_costs import StepCosts
from pipelines.speculation.survival import AcceptanceByMargin
from pipelines.speculation.tried_draft_length import TriedDraftLengths
from pipelines.speculation.watched_draft import WatchedDraft
from pipelines.text.vocabulary import Vocabulary


class EnginePair(Protocol):
    """How the loop reaches draft and target; the ways are the modules named ``*_engines``.

    Attributes:
        carries_margins: Whether proposals have their margins.
        stream: The target, token by token; None if it can only be asked for whole answers.
        stream_alone: The same for a request that drafts nothing from its beginning to its end.
    """

    vocabulary: Vocabulary
    end_ids: tuple[int, ...]
    loop: StepLoop
    carries_margins: bool
    stream: EngineStream | None
    stream_alone: EngineStream | None

    @property
    def draft(self) -> EngineCall:
        """Proposes."""

    @property
    def target(self) -> EngineCall:
        """Verifies."""

    def check(self, call: GenerationCall) -> None:
        """Refuse what the engines would refuse; raises InvalidRequestError."""

    def reason_for_target_alone(self, call: GenerationCall) -> str:
        """Why the pair can answer this only without drafting; "" if it can draft."""


class SpeculativeAnswerer:
    """Answers with what the loop gives.

    Args:
        engines: Draft and target.
        admission: Who may speculate now.
        setting: Draft length of requests that do not say, and ceiling.
        lengths: Follows the moment.
    """

    def __init__(
        self,
        engines: EnginePair,
        admission: Admission,
        setting: LiveDraftLength,
        lengths: DraftLengthController,
    ) -> None:
        self.vocabulary = engines.vocabulary
        self.end_ids = engines.end_ids
        self.totals = SpeculationStatistics(lengths.max_draft_len)
        self.alarm = AcceptanceAlarm()
        self.draft = WatchedDraft(engines.draft)
        self._engines = engines
        self._admission = admission
        self._setting = setting
        self._lengths = lengths
        self._sessions = Sessions(lengths.acceptance)

    def check(self, call: GenerationCall) -> None:
        """Refuse what cannot be answered."""
        self._setting.read().check(call.num_draft_tokens)
        self._engines.check(call)

    async def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Outputs, bool]]:
        """One response per chunk, with the counts so far."""
        request = call.request
        statistics = SpeculationStatistics(self._lengths.max_draft_len)
        rounds_so_far: list[tuple[int, int]] = []
        chunks = ChunkStream(self.vocabulary, request, streaming=call.streaming)
        wanted = call.num_draft_tokens
        if wanted is None:
            wanted = self._setting.read().num_draft_tokens
        used = "adaptive" if wanted is None else str(wanted)
        reason = self._engines.reason_for_target_alone(call)
        if reason and wanted != 0:
            wanted, used = 0, f"off: {reason}"
        async with self._admission.slot(request.deadline_s), self._rounds(call, wanted) as rounds:
            async for outcome in rounds:
                for counts in (statistics, self.totals):
                    counts.add_round(outcome)
                self.alarm.add(outcome.num_draft_tokens, outcome.num_accepted_tokens)
                rounds_so_far.append((outcome.num_draft_tokens, outcome.num_accepted_tokens))
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
                        "draft_length": text_tensor(used),
                        **(round_tensors(rounds_so_far) if chunk.is_final else {}),
                    }
                    yield outputs, chunk.is_final

    @asynccontextmanager
    async def _rounds(self, call: GenerationCall, wanted: int | None) -> AsyncIterator[AsyncIterator[Round]]:
        length: DraftLength
        if wanted is None:
            acceptance = self._sessions.acceptance(call.session_id)
            sees_margins = self._engines.carries_margins and not call.use_draft_logits
            length = self._lengths.begin(call.request.input_ids, acceptance, sees_margins=sees_margins)
        else:
            length = FixedDraftLength(wanted)
        loop = speculate(
            call.request,
            self.draft,
            self._engines.target,
            length,
            stream=self._engines.stream_alone if wanted == 0 else self._engines.stream,
            use_draft_logits=call.use_draft_logits,
        )
        try:
            async with aclosing(loop) as rounds:  # type: ignore[type-var]
                yield rounds
        finally:
            if wanted is None:
                self._lengths.end(length)


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


def round_tensors(rounds: Sequence[tuple[int, int]]) -> Outputs:
    """What each round of a whole answer verified and accepted; by it two pairs are compared."""
    drafted, accepted = np.array(rounds, np.int32).reshape(-1, 2).T
    return {"drafted_per_round": drafted.reshape(1, -1), "accepted_per_round": accepted.reshape(1, -1)}


def load_speculative_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Reach the engines in the way that ``engine_access`` names and start serving.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: An engine or the pair's calibration cannot be loaded.
        InvalidRequestError: The file with the draft length makes no sense.
        RepositoryError: The draft length or ``engine_access`` makes no sense.
    """
    wire = TritonWire(backend)
    gauges = Gauges(backend, parameters.model_name)
    setting = DraftLengthSetting.of_recipe(parameters)
    live = LiveDraftLength(setting, parameters.path("draft_length_file"))
    access = parameters.text("engine_access")
    engines: InProcessEngines | BlsEngines | TensorRtLlmEngines
    lengths: DraftLengthController
    if access == "tensorrt_llm":
        lengths = TriedDraftLengths(setting.max_draft_len)
        engines = TensorRtLlmEngines(parameters, ServerCalls())
    elif access in ("in_process", "bls"):
        calibration = Calibration.read(parameters.path("calibration_file"))
        costs = {
            role: StepCosts(measured.rows, measured.seconds, measured.seconds_per_position)
            for role, measured in (("draft", calibration.draft), ("target", calibration.target))
        }
        acceptance = AcceptanceByMargin(calibration.acceptance_rates, calibration.margin_shares)
        lengths = by_margin = DraftLengths(acceptance, costs["draft"], costs["target"], setting.max_draft_len)
        if access == "in_process":
            engines = InProcessEngines(parameters, calibration, costs, lambda: by_margin.tokens_per_s)
            for role, executor in engines.executors.items():
                watch_executor(gauges, role, executor)
        else:
            engines = BlsEngines(parameters, wire)
    else:
        raise RepositoryError(
            "engine_access is unknown",
            values=f"engine_access={access!r}",
            limit="'in_process', 'bls' or 'tensorrt_llm'",
            remedy="mend the recipe and run 'make repository'",
        )
    max_queue_size = parameters.integer("max_queue_size")
    admission = Admission(parameters.integer("max_batch_size"), max_queue_size)
    answerer = SpeculativeAnswerer(engines, admission, live, lengths)
    watch_speculation(gauges, answerer.totals)
    gauges.add("draftproof_recent_acceptance_rate", lambda: answerer.alarm.rate or 0.0)
    gauges.add("draftproof_draft_threshold", lambda: lengths.threshold)
    gauges.add("draftproof_draft_available", lambda: answerer.draft.is_available)
    gauges.add("draftproof_draft_failures_total", lambda: answerer.draft.num_failures)
    gauges.add("draftproof_requests_running", lambda: admission.num_running, engine="pair")
    gauges.add("draftproof_requests_waiting", lambda: admission.num_waiting, engine="pair")
    gauges.add("draftproof_max_queue_size", lambda: max_queue_size, engine="pair")
    times = TokenTimes(gauges)
    engines.start()
    gauges.start()
    return GenerationModel(parameters, wire, engines.loop, answerer, times, gauges.stop)
