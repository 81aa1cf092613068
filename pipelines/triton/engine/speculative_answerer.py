"""Answers requests with the draft-then-verify loop."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.speculation.watched_draft import WatchedDraft
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.draft_length_setting import DraftLengthSetting
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.tensorrt_llm.engines import TensorRtLlmEngines
from pipelines.wire.admission import Admission
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.messages import EngineRequest

_LOG = logging.getLogger(__name__)

MEMORY_S = 60.0  # after which a token counts 1/e in the acceptance rate
UNFIT_BELOW = 0.3
FIT_ABOVE = 0.4  # the rate must exceed this before the alarm can be raised again
LEAST_DRAFT_TOKENS = 500

MAX_SESSIONS = 4096
MAX_TOKENS = 4096
"""Most tokens of answers that are kept of a session: 64 MiB of all sessions together."""


class SpeculativeAnswerer:
    """Answers requests with the draft-then-verify loop.

    Attributes:
        totals: Counts of all rounds.
        alarm: Watches whether the draft fits.
        draft: The draft, as requests call it.

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
        setting: DraftLengthSetting,
        lengths: DraftLengths | None,
    ) -> None:
        self.vocabulary = engines.vocabulary
        self.end_ids = engines.end_ids
        self.grammars = engines.grammars
        self.totals = SpeculationStatistics(setting.max_draft_len)
        self.alarm = AcceptanceAlarm()
        self.draft = WatchedDraft(engines.draft)
        self._engines = engines
        self._admission = admission
        self._setting = setting
        self._lengths = lengths
        self._sessions = Sessions()

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        """Refuse a request that cannot be answered."""
        self._setting.check(asked.num_draft_tokens)
        self._engines.check(request)

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield each chunk, with the counts so far."""
        wanted, used = self._wanted(asked)
        statistics = SpeculationStatistics(self._setting.max_draft_len)
        drafted: list[int] = []  # in each round
        accepted: list[int] = []
        chunks = ChunkStream(self.vocabulary, request, streaming=asked.streaming)
        said: list[TokenIds] = [request.input_ids[request.num_prompt_tokens :]]  # by another server
        async with self._admission.slot(request.deadline_s):
            await self._engines.read_ahead(request)
            length = self._length(wanted, asked, request)
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
                    async for outcome in rounds:
                        said.append(outcome.token_ids)
                        if outcome.finish_reason:
                            self._sessions.remember(asked.session_id, said)
                        statistics.add_round(outcome)
                        self.totals.add_round(outcome)
                        self.alarm.add(outcome.num_draft_tokens, outcome.num_accepted_tokens)
                        drafted.append(outcome.num_draft_tokens)
                        accepted.append(outcome.num_accepted_tokens)
                        chunk = chunks.push(outcome)
                        if chunk is None:
                            continue
                        is_last = bool(chunk.finish_reason)
                        yield replace(
                            chunk,
                            counts=counts_so_far(statistics),
                            draft_length=used,
                            # Rollouts compare pairs by these.
                            drafted_per_round=tuple(drafted) if is_last else (),
                            accepted_per_round=tuple(accepted) if is_last else (),
                        )
            finally:
                length.end()

    def _wanted(self, asked: EngineRequest) -> tuple[int | None, str]:
        """Return a request's draft tokens per round, None to adapt them, and what its answer says of them."""
        wanted = asked.num_draft_tokens
        if wanted is None:
            wanted = self._setting.read()
        if wanted is None and self._lengths is None:
            wanted = self._setting.max_draft_len
        if wanted != 0 and (reason := self._engines.reason_for_target_alone(asked)):
            return 0, f"off: {reason}"
        return wanted, "adaptive" if wanted is None else str(wanted)

    def _length(self, wanted: int | None, asked: EngineRequest, request: GenerationRequest) -> DraftLength:
        if wanted is not None:
            return FixedDraftLength(wanted)
        assert self._lengths is not None
        return self._lengths.begin(
            request.input_ids,
            self._sessions.answer_ids(asked.session_id),
            np.array(asked.prediction_ids, np.int32),
            sees_gaps=not asked.use_draft_logits,
            cache_salt=asked.cache_salt,
        )


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


class AcceptanceAlarm:
    """Watches the acceptance rate of about the last minute and warns when the draft does not fit the traffic.

    The loop counts rounds while the thread that publishes gauges reads the rate.

    Attributes:
        is_unfit: Whether the alarm is raised.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_unfit = False
        self._clock = clock
        self._drafted_at_s = clock()
        # Tokens of all rounds, of which older ones count less.
        self._num_drafted = 0.0
        self._num_accepted = 0.0

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted for a minute."""
        if not self._num_drafted or self._clock() > self._drafted_at_s + MEMORY_S:
            return None
        return self._num_accepted / self._num_drafted

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one round."""
        if not num_draft_tokens:
            return
        now_s = self._clock()
        weight = math.exp((self._drafted_at_s - now_s) / MEMORY_S)
        self._drafted_at_s = now_s
        self._num_accepted = weight * self._num_accepted + num_accepted_tokens
        self._num_drafted = weight * self._num_drafted + num_draft_tokens
        if self._num_drafted >= LEAST_DRAFT_TOKENS:
            self._judge(self._num_accepted / self._num_drafted)

    def _judge(self, rate: float) -> None:
        if rate > FIT_ABOVE:
            self.is_unfit = False
        elif rate < UNFIT_BELOW and not self.is_unfit:
            self.is_unfit = True
            _LOG.warning(
                "the draft does not fit this traffic: about %.0f %% of its tokens of the last minute were "
                "accepted; below %.0f %% drafting seldom pays. Train or choose a draft closer to the target, "
                "or set num_draft_tokens: 0 in the recipe",
                100 * rate,
                100 * UNFIT_BELOW,
            )


class Sessions:
    """Keeps the latest answers of the sessions that were used most recently."""

    def __init__(self) -> None:
        self._answer_ids: OrderedDict[str, TokenIds] = OrderedDict()

    def answer_ids(self, session_id: str) -> TokenIds:
        """Return tokens of a session's answers, int32 [n], in which drafts are looked up."""
        return self._answer_ids.get(session_id, NO_TOKENS)

    def remember(self, session_id: str, parts: Sequence[TokenIds]) -> None:
        """Add an answer, given in parts int32 [n]; without an id it is forgotten."""
        if not session_id:
            return
        latest = np.concatenate((self._answer_ids.pop(session_id, NO_TOKENS), *parts))[-MAX_TOKENS:]
        self._answer_ids[session_id] = latest.copy()  # a view would keep all of the answer
        if len(self._answer_ids) > MAX_SESSIONS:
            self._answer_ids.popitem(last=False)
