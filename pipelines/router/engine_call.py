"""Sends one request to engines over their Unix sockets (the ``RoutedCall`` of ``router.routing``).

A candidate with the stable pair's target must give the same answer when it replays a request. A candidate
with another target, such as one with another quantization, is compared with its own target: it answers twice
with the same seed, with and without drafting.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from pipelines.errors import DraftproofError, ProcessEndedError, RequestTimeoutError
from pipelines.router.arms import Arm, ArmTable
from pipelines.router.breaker import FAILURES, outcome_of
from pipelines.router.engine_answer import EngineAnswer, prompt_id
from pipelines.router.failover import RETURNS_WITHIN_S
from pipelines.router.observation import Observation
from pipelines.router.preprocessing import resumed
from pipelines.router.received_answer import with_answer
from pipelines.router.suspects import Suspects
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import stream
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import continued, with_text
from pipelines.wire.messages import EngineRequest


class EngineCall:
    """One request, and the engines that may answer it.

    Attributes:
        received: The answer as the client has it; stays empty outside a rollout.

    Args:
        request: The request.
        sockets: Socket of each arm.
        vocabulary: Bytes of the tokens.
        suspects: Requests whose process ended.
        skip_special_tokens: Whether special tokens are left out of the text.
        is_observed: Whether a rollout is judged by the answer.
    """

    def __init__(
        self,
        request: EngineRequest,
        sockets: Mapping[Arm, Path],
        vocabulary: Vocabulary,
        suspects: Suspects,
        *,
        skip_special_tokens: bool = True,
        is_observed: bool = False,
    ) -> None:
        self.received = EngineAnswer(is_stream=request.streaming)
        self._request = request
        self._began_s = time.monotonic()
        self._sockets = sockets
        self._vocabulary = vocabulary
        self._suspects = suspects
        self._skip_special_tokens = skip_special_tokens
        self._digest = prompt_id(replace(request, sampling=replace(request.sampling, seed=0)))
        self._lost_at_s: float | None = None  # when it lost its latest process
        self._num_reached = 0  # tokens of the longest part of an answer that it lost
        self._given_ids: list[int] = []
        self._last: Chunk | None = None  # the latest chunk that the client has
        self._is_observed = is_observed

    async def ask(self, arm: Arm) -> AsyncGenerator[Chunk, None]:
        """Ask for the answer, or for its rest; the counts of drafting cover only this part."""
        asked, last = self._request, self._last
        if last is not None:
            asked = resumed(asked, self._given_ids)
        if self._given_ids:
            asked = replace(asked, return_prompt_log_probs=False)  # the client has them
        async with aclosing(self._stream(arm, asked, len(self._given_ids))) as chunks:
            async for chunk in chunks:
                yield chunk if last is None else continued(chunk, last)

    async def _stream(self, arm: Arm, request: EngineRequest, num_known: int) -> AsyncGenerator[Chunk, None]:
        """Send a request with the time that is left, always streamed so that silence can be noticed."""
        turn = None
        if self._lost_at_s is not None:
            wait_s = self._lost_at_s + RETURNS_WITHIN_S - time.monotonic()
            turn = await self._suspects.turn(min(wait_s, self._left_us(arm) / 1e6 or wait_s))
        num_seen, num_beyond = num_known, 0
        try:
            self._suspects.check(self._digest)
            timed = replace(request, streaming=True, timeout_us=self._left_us(arm))
            async with aclosing(self._answer(self._sockets[arm], timed)) as chunks:
                async for chunk in chunks:
                    num_seen += len(chunk.output_ids)
                    num_beyond += num_seen > self._num_reached
                    if turn is not None and num_beyond > 1:  # the first may be what the process did not send
                        turn.end()
                    yield chunk
        except ProcessEndedError as error:
            if error.took_request:
                self._lost_at_s, self._num_reached = time.monotonic(), max(self._num_reached, num_seen)
                if turn is not None and turn.lasts:
                    raise self._suspects.refuse(self._digest) from None
            raise
        finally:
            if turn is not None:
                turn.end()

    async def _answer(self, socket: Path, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Stream the chunks of one engine with their text."""
        async with aclosing(stream(socket, request)) as chunks:
            async for chunk in chunks:
                yield with_text(chunk, self._vocabulary, skip_special_tokens=self._skip_special_tokens)

    def _left_us(self, arm: Arm) -> int:
        """Return how much of the client's time is left, in microseconds; 0 for no limit."""
        if not self._request.timeout_us:
            return 0
        left_us = self._request.timeout_us - int(1e6 * (time.monotonic() - self._began_s))
        if left_us <= 0:
            raise RequestTimeoutError(
                f"the request's deadline passed before {arm} answered: timeout={self._request.timeout_us} us",
                "allow more time; the server's log says why its arms did not answer",
            )
        return left_us

    def may_hedge(self, arm: Arm) -> bool:
        """Whether the next arm may be asked because this one is slow.

        Not behind the stable pair: a long prompt is silent, too, and its target alone shares its engine.
        """
        return arm == "candidate"

    def deliver(self, chunk: Chunk) -> None:
        """Note a chunk that the client gets, and when."""
        self._given_ids += chunk.output_ids
        self._last = chunk
        if self._is_observed:
            self.received.add(chunk)

    def observed(self, observation: Observation) -> Observation:
        """Complete the observation of an answer."""
        return with_answer(observation, self.received) if self._is_observed else observation

    def failed(self, observation: Observation, error: DraftproofError) -> Observation:
        """Complete the observation of a request without an answer."""
        return replace(observation, failure="error") if outcome_of(error) in FAILURES else observation

    def has_fault(self, arm: Arm) -> bool:
        """Whether an answer counts as none: never, because an engine ends a broken one with an error."""
        return False

    @property
    def prompt(self) -> str:
        """The prompt as text."""
        return self._vocabulary.join(self._request.input_ids).decode("utf-8", "replace")

    @property
    def replay_arms(self) -> tuple[Arm, ...]:
        """A replay asks the candidate alone."""
        return ("candidate",)

    async def repeat(self, table: ArmTable, arm: Arm) -> EngineAnswer | None:
        """Ask an arm again; None if it is not to blame, as for a full queue or a deadline too short."""
        return await self._repeated(table, arm, self._request)

    async def expected(self, table: ArmTable) -> EngineAnswer | None:
        """Return what a replay must equal; None with the ratio rule, whose samples differ."""
        if self._request.use_draft_logits:
            return None
        if table.replays_match == "stable":
            return self.received
        return await self._repeated(table, "candidate", replace(self._request, num_draft_tokens=0))

    async def _repeated(self, table: ArmTable, arm: Arm, request: EngineRequest) -> EngineAnswer | None:
        received, socket = EngineAnswer(is_stream=False), Path(table.sockets[arm])
        try:
            async with aclosing(self._answer(socket, replace(request, streaming=True))) as chunks:
                async for chunk in chunks:
                    received.add(chunk)
        except DraftproofError as error:
            if outcome_of(error) not in FAILURES:
                return None
            received.cut(error.code)
        return received
