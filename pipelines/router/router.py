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
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.errors import InvalidRequestError, RequestTimeoutError
from pipelines.router.arms import Arm, ArmTable, LiveArms, pair_in_service
from pipelines.router.engine_call import EngineCall
from pipelines.router.observation import Observation
from pipelines.router.observation_log import ObservationLog
from pipelines.router.open_requests import OpenRequests
from pipelines.router.preprocessing import NUM_THREADS, Preprocessing
from pipelines.router.received_answer import prompt_id
from pipelines.router.routing import Arrived, Ended, Routing
from pipelines.router.suspects import Suspects
from pipelines.speculation.sampling.params import draw_seed
from pipelines.time_limit import within
from pipelines.wire.admission import OpenLimit
from pipelines.wire.answer import Response, TextOutputs, joined
from pipelines.wire.calls import Call, Tensors
from pipelines.wire.request import TEXT_INPUTS
from pipelines.wire.tensors import Inputs, read_id, read_scalar, scalar_tensor, text_tensor

_NUM_ENGINES = 3
"""Stable pair, candidate and target alone, each with its own limits."""


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


class Router:
    """Answers requests through the arms. Runs on a single event loop.

    Attributes:
        routing: The arms, their breakers and observations.
        num_requests: Requests by arm and outcome: "answered", "error", or "left" if no arm is to blame: the
            client disconnected, its deadline passed, the request was refused, or every queue was full.
        num_fallbacks: Requests that another arm answered, by the arm they were routed to.
        vocabulary: Bytes of the target's tokens.
        log: The log of observations.

    Args:
        preprocessing: Turns requests for text into requests for tokens.
        arms: The table of arms.
        log: Receives an observation of each answer during a rollout.
        open_requests: Requests in flight.
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
        self.num_requests: Counter[tuple[Arm, Ended]] = Counter()
        self.num_fallbacks: Counter[Arm] = Counter()
        self.vocabulary = preprocessing.vocabulary
        self.log = log
        self._preprocess = preprocessing
        self._open_limit = OpenLimit(max_open)
        self._tokenizing = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")
        self._suspects = Suspects()
        self.routing: Routing[Response] = Routing(arms, log, open_requests, self._count)

    @classmethod
    def of(
        cls, parameter: Callable[[str], str], preprocessing: Preprocessing, *, in_rollouts: bool = False
    ) -> Router:
        """Return a router to the engines of this machine.

        Args:
            parameter: Returns a parameter of the model ``router`` by its name.
            preprocessing: See the class.
            in_rollouts: Whether it follows the table of arms, as the front door does.
        """
        max_batch_size = int(parameter("max_batch_size"))
        pair = pair_in_service(parameter("stable_socket"), parameter("control_socket"), max_batch_size)
        log = ObservationLog(Path(parameter("observations_file")))
        # Engines would refuse requests beyond these.
        max_open = _NUM_ENGINES * (max_batch_size + int(parameter("max_queue_size")))
        arms = LiveArms(Path(parameter("arms_file")) if in_rollouts else None, pair)
        return cls(preprocessing, arms, log, OpenRequests(), max_open)

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
        await self.routing.close()
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
        table = self.routing.table
        session_id = read_id(call.tensors, "session_id")
        call = _prepared(call, table)
        own_id = f"{call.request_id}/{secrets.token_hex(8)}"
        key = session_id or call.request_id or own_id
        arrived = Arrived(own_id, key, session_id, named, prompt_id(call.tensors))
        visit = self.routing.begin(arrived, table)
        asked = EngineCall(
            call,
            {arm: Path(setting.socket) for arm, setting in table.settings.items()},
            self.vocabulary,
            partial(self.routing.ask, visit),
            self._suspects,
            is_observed=bool(table.canary_id),
        )
        held: list[Response] = []
        answered = self.routing.answer(visit, asked, streaming=asked.is_streamed, is_alone=is_alone)
        async with aclosing(answered) as responses:
            async for arm, response in responses:
                held.append(response)
                if not (asked.is_streamed or response[1]):
                    continue
                (outputs, is_final), held = joined(held), []
                if is_final:
                    outputs = {**outputs, **_of_arms(arm, visit.observation.fallback_from)}
                yield outputs, is_final

    def _count(self, observation: Observation, ended: Ended) -> None:
        if not observation.is_replay:
            self.num_requests[observation.arm, ended] += 1
            self.num_fallbacks.update(observation.fallback_from)


def _prepared(call: Call, table: ArmTable) -> Call:
    """Return the request with a seed, and without its session while a candidate is compared.

    Stable remembers more of a session than the candidate does, so its draft would look better than it is.
    """
    tensors = {"seed": scalar_tensor(draw_seed(), np.uint64), **call.tensors}
    if table.candidate is not None:
        tensors.pop("session_id", None)
    return replace(call, tensors=tensors)


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


def _of_arms(arm: Arm, fallback_from: Sequence[Arm]) -> Tensors:
    """Return the outputs that the router adds."""
    return {"arm": text_tensor(arm), "fallback_from": text_tensor(",".join(fallback_from))}
