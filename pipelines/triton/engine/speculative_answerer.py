"""Answers requests with the draft-then-verify loop."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from pipelines.atomic_file import version_of
from pipelines.errors import InvalidRequestError
from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.speculation.watched_draft import AcceptanceAlarm, WatchedDraft
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.tensorrt_llm.engines import TensorRtLlmEngines
from pipelines.wire.admission import Admission
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.messages import EngineRequest

_LOG = logging.getLogger(__name__)

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


class DraftLengthSetting:
    """The draft length of requests that do not specify one: the recipe's, or that of a file.

    The file holds JSON such as ``{"num_draft_tokens": 0}``; it need not exist.

    Attributes:
        max_draft_len: Upper limit for all requests, for which the engines were built.

    Args:
        parameters: Settings of the model.

    Raises:
        InvalidRequestError: The file is invalid at the start.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        self.max_draft_len = parameters.integer("max_draft_len")
        is_adaptive = parameters.text("num_draft_tokens") == "adaptive"
        self._of_recipe = None if is_adaptive else parameters.integer("num_draft_tokens")
        self._path = parameters.path("draft_length_file")
        self._seen = version_of(self._path)
        self._current = self._of_recipe if self._seen is None else self._parse()

    def read(self) -> int | None:
        """Return the draft tokens per round: 0 for no speculation, None to adapt to acceptance and load.

        An invalid file is logged once and ignored.
        """
        seen = version_of(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._current = self._of_recipe if seen is None else self._parse()
                _LOG.warning("num_draft_tokens is %s from now on", self._current)
            except InvalidRequestError as error:
                _LOG.error("the draft length stays the same: %s", error)
        return self._current

    def check(self, num_draft_tokens: int | None) -> None:
        """Refuse a draft length that is out of range.

        Raises:
            InvalidRequestError: It is not between 0 and ``max_draft_len``.
        """
        if num_draft_tokens is not None and not 0 <= num_draft_tokens <= self.max_draft_len:
            raise InvalidRequestError(
                f"num_draft_tokens={num_draft_tokens} is not from 0 to max_draft_len={self.max_draft_len}",
                "send 0 to disable speculation, or leave it out for the server's default",
            )

    def _parse(self) -> int | None:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            length = document["num_draft_tokens"]
            if len(document) > 1 or isinstance(length, bool) or not isinstance(length, int | None):
                raise ValueError(f"unknown key or wrong type: {document}")
            self.check(length)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidRequestError) as error:
            raise InvalidRequestError(
                f"{self._path} is invalid: {error!r:.200}",
                "write it with 'draftproof draft-length', as a length from 0 to "
                f"max_draft_len={self.max_draft_len}, or delete it to use the recipe's draft length",
            ) from error
        return length
