"""One way to an answer: tokenizes, chooses an arm, falls back to another one if it fails, and observes.

If the client sends no seed, the router draws one and sends it to every arm. So arms with the same target give
the same answer: a fallback can take over in mid-stream, and a replay on the candidate can be compared token
by token. An arm with another target continues from the tokens that the client has.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from pipelines.errors import DraftproofError, InvalidRequestError, RequestTimeoutError
from pipelines.router.arms import Arm, ArmTable, LiveArms
from pipelines.router.arrival import Arrived, begin_observation
from pipelines.router.breaker import FAILURES, Breaker
from pipelines.router.choice import fallback_order, healthy_first, skipped_arms
from pipelines.router.engine_arm import EngineArms
from pipelines.router.failover import answer_over
from pipelines.router.observation import FallbackReason, Observation
from pipelines.router.observation_log import ObservationLog
from pipelines.router.open_requests import OpenRequests, unix_time_s
from pipelines.router.preprocessing import Preprocessing
from pipelines.router.received_answer import (
    ReceivedAnswer,
    failure_of,
    is_streamed,
    prompt_id,
    with_answer,
    with_chunk_check,
)
from pipelines.router.replays import ShadowTraffic, is_replayed
from pipelines.speculation.sampling.params import draw_seed
from pipelines.time_limit import within
from pipelines.wire.admission import OpenLimit
from pipelines.wire.answer import Response, TextOutputs, joined
from pipelines.wire.calls import Call, Tensors
from pipelines.wire.request import TEXT_INPUTS
from pipelines.wire.tensors import Inputs, read_id, read_scalar, scalar_tensor, text_tensor

_NUM_TOKENIZING = 2
"""Threads for long texts; the tokenizer releases Python's lock."""


_NUM_ENGINES = 3
"""Stable pair, candidate and target alone, each with its own limits."""


def max_open_requests(max_batch_size: int, max_queue_size: int) -> int:
    """Return how many requests a router takes at a time; engines would refuse those beyond it."""
    return _NUM_ENGINES * (max_batch_size + max_queue_size)


@dataclass(frozen=True)
class TextRequest:
    """A request for text.

    Attributes:
        inputs: Its tensors (``wire.request.TEXT_INPUTS``).
        request_id: The client's id; need not be unique.
        timeout_us: Time limit in microseconds; 0 for none.
        arm: The arm that alone may answer; "" to choose one, and others if it fails.
    """

    inputs: Inputs
    request_id: str = ""
    timeout_us: int = 0
    arm: str = ""


@dataclass
class _RoutedRequest:
    """One request in the router.

    Attributes:
        call: The request, with a seed.
        table: The table of arms at arrival.
        wanted: The arm that the request is routed to.
        number: Number among the open requests.
        observation: The observation, completed when the request ends.
        is_streamed: Whether the client wants chunks.
        received: The answer so far; stays empty without a rollout.
        received_at_s: Unix time of the latest response with tokens.
    """

    call: Call
    table: ArmTable
    wanted: Arm
    number: int
    observation: Observation
    is_streamed: bool
    received: ReceivedAnswer
    received_at_s: float | None = None


class Router:
    """Answers requests through the arms. Runs on a single event loop.

    Attributes:
        num_requests: Requests by arm and outcome: "answered", "error", or "left" if no arm is to blame: the
            client disconnected, its deadline passed, the request was refused, or every queue was full.
        num_fallbacks: Requests that another arm answered, by the arm they were routed to.
        log: The log of observations.
        vocabulary: Bytes of the target's tokens.

    Args:
        preprocessing: Turns requests for text into requests for tokens.
        arms: The table of arms.
        log: Receives an observation of each answer during a rollout.
        open_requests: Requests in flight, of all routers of the server.
        max_open: Most requests of this router at a time.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        arms: LiveArms,
        log: ObservationLog,
        open_requests: OpenRequests,
        max_open: int,
    ) -> None:
        self.num_requests: Counter[tuple[Arm, str]] = Counter()
        self.num_fallbacks: Counter[Arm] = Counter()
        self.log = log
        self.vocabulary = preprocessing.vocabulary
        self._preprocess = preprocessing
        self._arms = arms
        self._open = open_requests
        self._open_limit = OpenLimit(max_open)
        self._tokenizing = ThreadPoolExecutor(_NUM_TOKENIZING, thread_name_prefix="tokenize")
        self._breakers: dict[str, Breaker] = {}
        self._next_hedge_s = 0.0
        self._replays = ShadowTraffic(arms, self._open, self._note, self.vocabulary)

    @property
    def table(self) -> ArmTable:
        """The current table of arms."""
        return self._arms.read()

    @property
    def num_open(self) -> int:
        """Number of requests in flight, including replays."""
        return len(self._open)

    @property
    def replays(self) -> tuple[int, int]:
        """Numbers of replays started and dropped."""
        return self._replays.counts

    def is_out(self, arm: Arm) -> bool:
        """Whether the breaker of an arm is open."""
        setting = self.table.settings.get(arm)
        breaker = self._breakers.get(setting.socket) if setting else None
        return breaker is not None and breaker.state(time.monotonic()) != "closed"

    async def answer(self, request: TextRequest) -> AsyncGenerator[Response, None]:
        """Stream the responses of one answer; the last one names the arm.

        Raises:
            InvalidRequestError: The request is invalid, or names an arm that is not served.
            DraftproofError: No arm answered; this is the error of the last one.
        """
        if request.arm:
            _refuse_choices(request)
        with ExitStack() as place:
            place.enter_context(self._open_limit.place())
            call = await self._tokenized(request)
            skip = bool(read_scalar(request.inputs, "skip_special_tokens", bool, True))
            outputs = TextOutputs(self.vocabulary, skip_special_tokens=skip)
            named = request.arm or read_id(request.inputs, "arm")
            answered = self.answer_tokens(call, named, is_alone=bool(request.arm))
            async with aclosing(answered) as responses:
                async for response in responses:
                    if response[1]:
                        place.close()  # a client that has its answer may send the next request
                    yield outputs.of(response)

    async def close(self) -> None:
        """Stop all replays."""
        await self._replays.end()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    async def _tokenized(self, request: TextRequest) -> Call:
        """Return the request to an engine; a long text is tokenized on a thread."""
        began_s = time.monotonic()
        if self._preprocess.is_quick(request.inputs):
            tensors = self._preprocess(request.inputs)
        else:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._tokenizing, self._preprocess, request.inputs)
            try:
                tensors = await within(request.timeout_us / 1e6 or None, work)
            except asyncio.TimeoutError:
                raise RequestTimeoutError(
                    "the request's deadline passed before its text was tokenized",
                    values=f"timeout={request.timeout_us} microseconds",
                    limit="the timeout sent with the request",
                    remedy="allow more time, shorten the prompt, or send fewer long prompts concurrently",
                ) from None
        streaming = read_scalar(request.inputs, "stream", bool, False)
        tensors = {**tensors, "streaming": scalar_tensor(streaming, np.bool_)}
        timeout_us = request.timeout_us
        if timeout_us:
            timeout_us = max(1, timeout_us - int(1e6 * (time.monotonic() - began_s)))
        return Call(tensors, request.request_id, timeout_us)

    async def answer_tokens(
        self, call: Call, named: str = "", *, is_alone: bool = False
    ) -> AsyncGenerator[Response, None]:
        """Stream the responses of engines to a request for tokens.

        Args:
            call: The request to an engine.
            named: The arm that the client chose; "" to choose one by weight.
            is_alone: Whether no other arm may answer.

        Raises:
            DraftproofError: See ``answer``.
        """
        visit = self._begin(call, named)
        ended: Literal["answered", "error", "left"] = "left"
        asked = self._client(visit)
        order = (visit.wanted,) if is_alone else fallback_order(visit.wanted, visit.table.settings)
        healthy = healthy_first(
            order, lambda arm: self._breaker(visit.table, arm).lets_through(time.monotonic())
        )
        try:
            arm = visit.wanted
            held: list[Response] = []
            async with aclosing(self._over(healthy, asked, visit)) as answered:
                async for arm, response in answered:
                    self._receive(visit, response[0])
                    held.append(response)
                    if not (visit.is_streamed or response[1]):
                        continue
                    (outputs, is_final), held = joined(held), []
                    if is_final:
                        passed = skipped_arms(order, arm, asked.outcomes)
                        self._answered(visit, arm, passed, is_alone=len(asked.outcomes) == 1)
                        ended = "answered"
                        outputs = {**outputs, **_of_arms(arm, [each for each, _ in passed])}
                    yield outputs, is_final
        except DraftproofError as error:
            if failure_of(error):
                ended = "error"
                outcomes = reversed(asked.outcomes.items())
                arm = next((arm for arm, outcome in outcomes if outcome in FAILURES), visit.wanted)
                visit.observation = replace(visit.observation, arm=arm, failure="error")
            raise
        finally:
            self._end(visit, ended)

    def _over(
        self, order: tuple[Arm, ...], asked: EngineArms, visit: _RoutedRequest
    ) -> AsyncGenerator[tuple[Arm, Response], None]:
        return answer_over(order, asked, visit.table.slow_after_s, streaming=visit.is_streamed)

    def _begin(self, call: Call, named: str) -> _RoutedRequest:
        table = self._arms.read()
        session_id = read_id(call.tensors, "session_id")
        own_id = f"{call.request_id}/{secrets.token_hex(8)}"
        key = session_id or call.request_id or own_id
        if "seed" not in call.tensors:
            call = replace(call, tensors={**call.tensors, "seed": scalar_tensor(draw_seed(), np.uint64)})
        if table.candidate is not None:
            # Stable remembers more of a session than the candidate does, so its draft would look better than
            # it is.
            call = replace(call, tensors={k: v for k, v in call.tensors.items() if k != "session_id"})
        num_draft_tokens = read_scalar(call.tensors, "num_draft_tokens", int, None)
        arrived = Arrived(own_id, key, session_id, named, prompt_id(call.tensors), num_draft_tokens)
        number, observation = begin_observation(arrived, table, self._open)
        received = ReceivedAnswer(self.vocabulary)
        return _RoutedRequest(call, table, observation.arm, number, observation, is_streamed(call), received)

    def _client(self, visit: _RoutedRequest) -> EngineArms:
        settings = visit.table.settings
        sockets = {arm: Path(setting.socket) for arm, setting in settings.items()}
        breakers = {arm: self._breaker(visit.table, arm) for arm in settings}
        return EngineArms(visit.call, sockets, breakers, self.vocabulary, self._may_hedge)

    def _breaker(self, table: ArmTable, arm: Arm) -> Breaker:
        socket = table.settings[arm].socket
        return self._breakers.setdefault(socket, Breaker(f"{arm} at {socket}"))

    def _may_hedge(self) -> bool:
        """Allow one hedge per ``slow_after_s``, so that a slow server does not get twice the load."""
        now_s = time.monotonic()
        if now_s < self._next_hedge_s:
            return False
        self._next_hedge_s = now_s + self.table.slow_after_s
        return True

    def _receive(self, visit: _RoutedRequest, outputs: Tensors) -> None:
        if not visit.observation.generation:
            return
        visit.received.add(outputs)
        if not (visit.is_streamed and visit.received.output_ids):
            return
        observation, now_s = visit.observation, unix_time_s()
        if visit.received_at_s is None:
            visit.observation = replace(observation, ttft_s=now_s - observation.arrived_at_s)
        else:
            pause_s = max(observation.longest_pause_s or 0.0, now_s - visit.received_at_s)
            visit.observation = replace(observation, longest_pause_s=pause_s)
        visit.received_at_s = now_s

    def _answered(
        self,
        visit: _RoutedRequest,
        arm: Arm,
        passed: tuple[tuple[Arm, FallbackReason], ...],
        *,
        is_alone: bool,
    ) -> None:
        """Complete the observation. If a single arm answered, its chunks must not contradict each other."""
        visit.observation = replace(
            with_answer(visit.observation, visit.received),
            arm=arm,
            fallback_from=tuple(each for each, _ in passed),
            fallback_reasons=tuple(reason for _, reason in passed),
            e2e_latency_s=unix_time_s() - visit.observation.arrived_at_s,
        )
        if arm == "candidate" and is_alone:
            visit.observation = with_chunk_check(
                visit.observation, visit.call, visit.received, self.vocabulary
            )
        self.num_fallbacks.update(each for each, _ in passed)
        setting = visit.table.shadow
        if (
            arm == visit.wanted == "stable"
            and setting is not None
            and not visit.observation.overridden
            and is_replayed(setting, visit.table.salt, visit.observation.request_id)
        ):
            self._replays.offer(visit.call, visit.observation, visit.received)

    def _end(self, visit: _RoutedRequest, ended: str) -> None:
        self.num_requests[visit.observation.arm, ended] += 1
        self._note(visit.number, visit.observation, is_wanted=ended != "left")

    def _note(self, number: int, observation: Observation, *, is_wanted: bool) -> None:
        oldest_open_at_s = self._open.end(number)
        if is_wanted and observation.generation:  # otherwise there is no rollout to judge
            self.log.put(replace(observation, oldest_open_at_s=oldest_open_at_s))


def _refuse_choices(request: TextRequest) -> None:
    """Refuse an arm where one is given, and what the target alone cannot follow."""
    parts = {name: TEXT_INPUTS[name].part for name in request.inputs}
    unknown = [name for name, part in parts.items() if part == "draft" and request.arm == "control"]
    if "arm" in parts:
        unknown.append("arm")
    if unknown:
        raise InvalidRequestError(
            f"the input '{unknown[0]}' has no meaning for this model",
            values=f"{', '.join(unknown)}; the model is answered by {request.arm}",
            limit="generate has no arm, generate_target neither arm nor draft",
            remedy="leave it out, or send the request to router",
        )


def _of_arms(arm: Arm, fallback_from: list[Arm]) -> Tensors:
    """Return the outputs that the router adds."""
    return {"arm": text_tensor(arm), "fallback_from": text_tensor(",".join(fallback_from))}
