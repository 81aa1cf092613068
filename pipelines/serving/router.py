"""Answers each request by the arm that it belongs to, and by another one where that fails.

The tokens of every arm come with the seed that the router draws where the client names none. So arms with
one target give one answer: whoever stands in says what the first one would have said, in mid-stream too,
and a replay of the candidate can be compared token by token. An arm with another target goes on from what the
client has.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from pipelines.errors import DraftproofError, InvalidRequestError, RequestCancelledError
from pipelines.routing.arms import Arm, ArmTable, LiveArms
from pipelines.routing.breaker import Breaker
from pipelines.routing.choice import choose, chosen_by_client
from pipelines.routing.failover import answer_over
from pipelines.routing.observation import Failure, FallbackReason, Observation
from pipelines.routing.observation_log import ObservationLog
from pipelines.routing.open_requests import OpenRequests, unix_time_s
from pipelines.routing.order import healthy_first, order_of_asking, passed_over
from pipelines.routing.shadow import is_repeated
from pipelines.serving.asked_arms import AskedArms, Response, joined
from pipelines.serving.inputs import read_scalar
from pipelines.serving.local_calls import Call, Tensors
from pipelines.serving.observing import answer_observed, failure_of, is_streamed, prompt_id
from pipelines.serving.replays import Replays
from pipelines.serving.text_model import Responses
from pipelines.serving.triton_wire import scalar_tensor, text_tensor
from pipelines.speculation.sampling_params import draw_seed
from pipelines.text.vocabulary import Vocabulary


@dataclass
class _Visit:
    """One request in the router.

    Attributes:
        call: With its seed.
        table: Of the moment of its arrival.
        wanted: The arm that it belongs to.
        number: Among the open requests.
        observation: What is noted when it ends, as far as it is known.
        is_streamed: Whether the client wants chunks.
        output_ids: That the client has.
        last: Outputs of the last response.
    """

    call: Call
    table: ArmTable
    wanted: Arm
    number: int
    observation: Observation
    is_streamed: bool
    output_ids: list[int] = field(default_factory=list)
    last: Tensors = field(default_factory=dict)


class Router:
    """Gives the tokens of a text model; all on one loop.

    Attributes:
        num_requests: By arm and how they ended: "answered", "error", "timeout" or "left".
        num_fallbacks: Requests that another arm answered, by the arm that was to.
        log: What is noted.

    Args:
        arms: To be followed.
        log: Gets what is noted while a table of arms is there.
        vocabulary: Bytes of the tokens.
    """

    def __init__(self, arms: LiveArms, log: ObservationLog, vocabulary: Vocabulary) -> None:
        self.num_requests: Counter[tuple[Arm, str]] = Counter()
        self.num_fallbacks: Counter[Arm] = Counter()
        self.log = log
        self._arms = arms
        self._vocabulary = vocabulary
        self._open = OpenRequests()
        self._breakers: dict[str, Breaker] = {}
        self._next_hedge_s = 0.0
        self._replays = Replays(arms, self._open, self._note, vocabulary)

    @property
    def table(self) -> ArmTable:
        """What is followed now."""
        return self._arms.read()

    @property
    def num_open(self) -> int:
        """Requests in work, replays among them."""
        return len(self._open)

    @property
    def replays(self) -> tuple[int, int]:
        """Replays begun, and dropped."""
        return self._replays.counts

    def is_out(self, arm: Arm) -> bool:
        """Whether an arm was taken out because it failed."""
        setting = self.table.settings.get(arm)
        breaker = self._breakers.get(setting.socket) if setting else None
        return breaker is not None and breaker.state(time.monotonic()) != "closed"

    async def answer(self, call: Call) -> Responses:
        """Tokens of one answer (``text_model.Responses``); the last response names the arm.

        Raises:
            InvalidRequestError: The arm that the client names is not there, or the request makes no sense.
            DraftproofError: What the last arm raised; no arm answered.
        """
        visit = self._begin(call)
        ended: Failure | Literal["answered", "left"] = "left"
        asked = self._asked(visit)
        order = order_of_asking(visit.wanted, visit.table.settings)
        healthy = healthy_first(
            order, lambda arm: self._breaker(visit.table, arm).lets_through(time.monotonic())
        )
        try:
            arm = visit.wanted
            held: list[Response] = []
            async with aclosing(self._over(healthy, asked, visit)) as answered:
                async for arm, response in answered:
                    self._hear(visit, response[0])
                    held.append(response)
                    if not (visit.is_streamed or response[1]):
                        continue
                    (outputs, is_final), held = joined(held), []
                    if is_final:
                        passed = passed_over(order, arm, asked.outcomes)
                        self._answered(visit, arm, passed)
                        ended = "answered"
                        outputs = {**outputs, **_told(arm, [each for each, _ in passed])}
                    yield outputs, is_final
        except (InvalidRequestError, RequestCancelledError):
            raise  # the client's own
        except DraftproofError as error:
            ended = failure = failure_of(error)
            arm = next(reversed(asked.outcomes), visit.wanted)
            visit.observation = replace(visit.observation, arm=arm, failure=failure)
            raise
        finally:
            self._end(visit, ended)

    def _over(
        self, order: tuple[Arm, ...], asked: AskedArms, visit: _Visit
    ) -> AsyncGenerator[tuple[Arm, Response], None]:
        return answer_over(order, asked, visit.table.slow_after_s, streaming=visit.is_streamed)

    async def end(self) -> None:
        """Repeat nothing any more."""
        await self._replays.end()

    def _begin(self, call: Call) -> _Visit:
        table = self._arms.read()
        session_id, named = (
            read_scalar(call.tensors, name, bytes, b"").decode("utf-8", "backslashreplace")
            for name in ("session_id", "arm")
        )
        own_id = f"{call.request_id}/{secrets.token_hex(8)}"
        key = session_id or call.request_id or own_id
        if named:
            wanted = chosen_by_client(named, table.settings)
        else:
            wanted = choose(table.weights(unix_time_s()), table.salt, key)
        if "seed" not in call.tensors:
            call = replace(call, tensors={**call.tensors, "seed": scalar_tensor(draw_seed(), np.uint64)})
        number, arrived_at_s = self._open.begin()
        num_draft_tokens = read_scalar(call.tensors, "num_draft_tokens", int, None)
        observation = Observation(
            canary_id=table.canary_id,
            generation=table.generation,
            request_id=own_id,
            key=key,
            arm=wanted,
            arrived_at_s=arrived_at_s,
            oldest_open_at_s=arrived_at_s,
            band=table.bands.band(len(self._open)),
            overridden=bool(named),
            draft_length=num_draft_tokens,
            prompt_id=prompt_id(call.tensors),
            session_id=session_id,
        )
        return _Visit(call, table, wanted, number, observation, is_streamed(call))

    def _asked(self, visit: _Visit) -> AskedArms:
        settings = visit.table.settings
        sockets = {arm: Path(setting.socket) for arm, setting in settings.items()}
        breakers = {arm: self._breaker(visit.table, arm) for arm in settings}
        return AskedArms(visit.call, sockets, breakers, self._vocabulary, self._may_hedge)

    def _breaker(self, table: ArmTable, arm: Arm) -> Breaker:
        socket = table.settings[arm].socket
        return self._breakers.setdefault(socket, Breaker(f"{arm} at {socket}"))

    def _is_in(self, table: ArmTable, arm: Arm) -> bool:
        return self._breaker(table, arm).lets_through(time.monotonic())

    def _may_hedge(self) -> bool:
        """Once in a while: a slow server is not made slower by asking everything twice."""
        now_s = time.monotonic()
        if now_s < self._next_hedge_s:
            return False
        self._next_hedge_s = now_s + self.table.slow_after_s
        return True

    def _hear(self, visit: _Visit, outputs: Tensors) -> None:
        visit.output_ids.extend(outputs["output_ids"].reshape(-1).tolist())
        visit.last = outputs
        if visit.output_ids and visit.observation.ttft_s is None and visit.is_streamed:
            ttft_s = unix_time_s() - visit.observation.arrived_at_s
            visit.observation = replace(visit.observation, ttft_s=ttft_s)

    def _answered(self, visit: _Visit, arm: Arm, passed: tuple[tuple[Arm, FallbackReason], ...]) -> None:
        visit.observation = replace(
            answer_observed(visit.observation, visit.last, visit.output_ids),
            arm=arm,
            fallback_from=tuple(each for each, _ in passed),
            fallback_reasons=tuple(reason for _, reason in passed),
            e2e_latency_s=unix_time_s() - visit.observation.arrived_at_s,
        )
        self.num_fallbacks.update(each for each, _ in passed)
        setting = visit.table.shadow
        if (
            arm == visit.wanted == "stable"
            and setting is not None
            and not visit.observation.overridden
            and is_repeated(setting, visit.table.salt, visit.observation.request_id)
        ):
            self._replays.offer(visit.call, visit.observation, visit.output_ids)

    def _end(self, visit: _Visit, ended: str) -> None:
        self.num_requests[visit.observation.arm, ended] += 1
        self._note(visit.number, visit.observation, is_wanted=ended != "left")

    def _note(self, number: int, observation: Observation, *, is_wanted: bool) -> None:
        oldest_open_at_s = self._open.end(number)
        if is_wanted and observation.generation:  # else there is no rollout, and nobody reads it
            self.log.put(replace(observation, oldest_open_at_s=oldest_open_at_s))


def _told(arm: Arm, fallback_from: list[Arm]) -> Tensors:
    """Outputs of the router's own."""
    return {"arm": text_tensor(arm), "fallback_from": text_tensor(",".join(fallback_from))}
