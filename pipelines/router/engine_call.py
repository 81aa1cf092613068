"""Sends one request to engines over their Unix sockets (the ``RoutedCall`` of ``router.routing``).

A candidate with the stable pair's target must give the same answer when it replays a request. A candidate
with another target, such as one with another quantization, is compared with its own target: it answers twice
with the same seed, with and without drafting.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError, ProcessEndedError, RequestTimeoutError
from pipelines.router.arms import Arm, ArmTable
from pipelines.router.breaker import FAILURES, Outcome
from pipelines.router.failover import RETURNS_WITHIN_S
from pipelines.router.observation import Observation
from pipelines.router.open_requests import unix_time_s
from pipelines.router.received_answer import (
    ReceivedAnswer,
    failure_of,
    is_comparable,
    is_streamed,
    num_common_tokens,
    prompt_id,
    with_answer,
    with_chunk_check,
    with_comparison,
)
from pipelines.router.suspects import Suspects
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.answer import Response, continued, without_first
from pipelines.wire.calls import Call, stream
from pipelines.wire.tensors import read_scalar, scalar_tensor


class EngineCall:
    """One request, and the engines that may answer it.

    Attributes:
        outcomes: Known outcomes of the arms that were asked.
        received: The answer as the client has it; stays empty outside a rollout.
        is_streamed: Whether the client wants chunks.

    Args:
        call: The request, with a seed.
        sockets: Socket of each arm.
        vocabulary: Bytes of the tokens.
        asked: Records that an arm is asked; the returned function is called once, with the outcome.
        suspects: Requests whose process ended.
        is_observed: Whether a rollout is judged by the answer.
    """

    def __init__(
        self,
        call: Call,
        sockets: Mapping[Arm, Path],
        vocabulary: Vocabulary,
        asked: Callable[[Arm], Callable[[Outcome], None]],
        suspects: Suspects,
        *,
        is_observed: bool = False,
    ) -> None:
        self.outcomes: dict[Arm, Outcome] = {}
        self.received = ReceivedAnswer(vocabulary)
        self.is_streamed = is_streamed(call)
        self._call = call
        self._began_s = time.monotonic()
        self._sockets = sockets
        self._vocabulary = vocabulary
        self._asked = asked
        self._suspects = suspects
        self._digest = prompt_id({name: each for name, each in call.tensors.items() if name != "seed"})
        self._lost_at_s: float | None = None  # when it lost its latest process
        self._num_reached = 0  # tokens of the longest part of an answer that it lost
        self._is_observed = is_observed
        self._first_at_s: float | None = None
        self._latest_at_s = 0.0
        self._longest_pause_s: float | None = None

    def ask(self, arm: Arm) -> AsyncGenerator[Response, None]:
        """Send the request with the time that is left, always streamed so that silence can be noticed."""
        return self._stream(arm, self._call.tensors)

    async def resume(
        self, arm: Arm, output_ids: Sequence[int], last: Response
    ) -> AsyncGenerator[Response, None]:
        """Ask for the rest of an answer.

        ``prompt_length`` separates prompt from output, so penalties, ``min_tokens``, words and noise are the
        same as in one uninterrupted answer. The counts of drafting cover only this part.
        """
        given = self._call.tensors
        num_input, num_known = given["input_ids"].size, len(output_ids)
        known = np.array(output_ids, given["input_ids"].dtype).reshape(1, -1)
        max_tokens = read_scalar(given, "request_output_len", int, 0)
        tensors = {
            **given,
            "input_ids": np.concatenate((given["input_ids"].reshape(1, -1), known), axis=1),
            "input_lengths": scalar_tensor(num_input + num_known, np.int32),
            "prompt_length": given.get("prompt_length", scalar_tensor(num_input, np.int32)),
            "request_output_len": scalar_tensor(max_tokens - num_known, np.int32),
        }
        if num_known:
            tensors.pop("return_prompt_log_probs", None)  # the client has them
        async with aclosing(self._stream(arm, tensors, num_known)) as responses:
            async for response in responses:
                yield continued(response, last)

    async def _stream(
        self, arm: Arm, tensors: Mapping[str, npt.NDArray[Any]], num_known: int = 0
    ) -> AsyncGenerator[Response, None]:
        turn = None
        if self._lost_at_s is not None:
            wait_s = self._lost_at_s + RETURNS_WITHIN_S - time.monotonic()
            turn = await self._suspects.turn(min(wait_s, self._left_us(arm) / 1e6 or wait_s))
        num_seen, num_beyond = num_known, 0
        try:
            self._suspects.check(self._digest)
            async with aclosing(self._responses(arm, tensors)) as responses:
                async for response in responses:
                    num_seen += response[0]["output_ids"].size
                    num_beyond += num_seen > self._num_reached
                    if turn is not None and num_beyond > 1:  # the first may be what the process did not send
                        turn.end()
                    yield response
        except ProcessEndedError as error:
            if error.took_request:
                self._lost_at_s, self._num_reached = time.monotonic(), max(self._num_reached, num_seen)
                if turn is not None and turn.lasts:
                    raise self._suspects.refuse(self._digest) from None
            raise
        finally:
            if turn is not None:
                turn.end()

    async def _responses(
        self, arm: Arm, tensors: Mapping[str, npt.NDArray[Any]]
    ) -> AsyncGenerator[Response, None]:
        streamed = {**tensors, "streaming": scalar_tensor(True, np.bool_)}
        call = replace(self._call, tensors=streamed, timeout_us=self._left_us(arm))
        async with aclosing(stream(self._sockets[arm], call)) as responses:
            async for response in responses:
                yield response

    def _left_us(self, arm: Arm) -> int:
        """Return how much of the client's time is left, in microseconds; 0 for no limit."""
        if not self._call.timeout_us:
            return 0
        left_us = self._call.timeout_us - int(1e6 * (time.monotonic() - self._began_s))
        if left_us <= 0:
            raise RequestTimeoutError(
                "the request's deadline passed before an arm answered",
                values=f"timeout={self._call.timeout_us} microseconds, arm {arm}",
                limit="the timeout sent with the request",
                remedy="allow more time; the server's log says why its arms did not answer",
            )
        return left_us

    def begin(self, arm: Arm) -> Callable[[Outcome], None]:
        """Record that an arm is asked."""
        asked = self._asked(arm)

        def end(outcome: Outcome) -> None:
            self.outcomes[arm] = outcome
            asked(outcome)

        return end

    def may_hedge(self, arm: Arm) -> bool:
        """Whether the next arm may be asked because this one is slow.

        Not behind the stable pair: a long prompt is silent, too, and its target alone shares its engine.
        """
        return arm == "candidate"

    def output_ids(self, chunk: Response) -> Sequence[int]:
        """Return the new tokens of a response."""
        ids: list[int] = chunk[0]["output_ids"].reshape(-1).tolist()
        return ids

    def is_last(self, chunk: Response) -> bool:
        """Whether a response ends the answer."""
        return chunk[1]

    def without_first(self, chunk: Response, num_tokens: int) -> Response:
        """Return the response without its first tokens and their text."""
        return without_first(chunk, num_tokens, self._vocabulary)

    def deliver(self, chunk: Response) -> None:
        """Note a response that the client gets, and when."""
        if not self._is_observed:
            return
        self.received.add(chunk[0])
        if not (self.is_streamed and self.received.output_ids):
            return
        now_s = unix_time_s()
        if self._first_at_s is None:
            self._first_at_s = now_s
        else:
            self._longest_pause_s = max(self._longest_pause_s or 0.0, now_s - self._latest_at_s)
        self._latest_at_s = now_s

    def observed(self, observation: Observation) -> Observation:
        """Complete an observation. If a single arm answered, its chunks must not contradict each other."""
        observation = with_answer(self._with_times(observation), self.received)
        if observation.arm == "candidate" and len(self.outcomes) == 1:
            return with_chunk_check(observation, self._call, self.received, self._vocabulary)
        return observation

    def failed(self, observation: Observation, error: DraftproofError) -> Observation:
        """Complete the observation of a request without an answer; the arm that failed last is to blame."""
        observation = self._with_times(observation)
        failure = failure_of(error)
        if not failure:
            return observation
        failed = [arm for arm, outcome in self.outcomes.items() if outcome in FAILURES]
        return replace(observation, arm=failed[-1] if failed else observation.arm, failure=failure)

    def _with_times(self, observation: Observation) -> Observation:
        if self._first_at_s is None:
            return observation
        ttft_s = self._first_at_s - observation.arrived_at_s
        return replace(observation, ttft_s=ttft_s, longest_pause_s=self._longest_pause_s)

    @property
    def replay_arms(self) -> tuple[Arm, ...]:
        """A replay asks the candidate alone."""
        return ("candidate",)

    async def replay(self, table: ArmTable, begun: Mapping[Arm, Observation]) -> Mapping[Arm, Observation]:
        """Ask the candidate, and compare its answer with the one that it should give."""
        observation = begun["candidate"]
        socket = Path(table.settings["candidate"].socket)
        try:
            received = await self._replayed_by(socket)
            observation = replace(
                with_answer(observation, received),
                e2e_latency_s=unix_time_s() - observation.arrived_at_s,
                num_common_tokens=num_common_tokens(self.received.output_ids, received.output_ids),
            )
            return {"candidate": await self._compared(observation, received, table, socket)}
        except DraftproofError as error:
            failure = failure_of(error)  # else the queue is full or the client's deadline too short
            return {"candidate": replace(observation, failure=failure)} if failure else {}

    async def _compared(
        self, observation: Observation, received: ReceivedAnswer, table: ArmTable, socket: Path
    ) -> Observation:
        if not is_comparable(self._call):
            return with_chunk_check(observation, self._call, received, self._vocabulary)
        expected = self.received
        if table.replays_match == "own_target":
            expected = await self._replayed_by(socket, num_draft_tokens=scalar_tensor(0, np.int32))
        return with_comparison(
            observation, self._call, table.replays_match, expected, received, self._vocabulary
        )

    async def _replayed_by(self, socket: Path, **others: npt.NDArray[Any]) -> ReceivedAnswer:
        tensors = {**self._call.tensors, **others, "streaming": scalar_tensor(True, np.bool_)}
        received = ReceivedAnswer(self._vocabulary)
        async with aclosing(stream(socket, replace(self._call, tensors=tensors))) as responses:
            async for outputs, _ in responses:
                received.add(outputs)
        return received
