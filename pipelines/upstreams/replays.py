"""Replays requests of the stable server on the candidate, and once more on the stable server itself.

Both replays are compared with the answer that the client got. How often the stable server differs from itself
is the noise floor: rounding that depends on the batch, or a hidden seed. A candidate is judged by how much
more often it differs (``judge.metrics``). An answer to which one of the replays is missing is not compared.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from pipelines.errors import DraftproofError
from pipelines.router.arms import Arm, ArmTable, LiveArms, ShadowSetting
from pipelines.router.observation import Difference, Divergence, Observation
from pipelines.router.open_requests import OpenRequests, unix_time_s
from pipelines.router.replays import ReplayQueue
from pipelines.time_limit import within
from pipelines.upstreams.answer import CHARACTERS_PER_TOKEN, Answer
from pipelines.upstreams.call import UpstreamCall
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.upstream import Upstream

_MOST_TIMES = 10.0
"""A replay may take so many times as long as the answer that the client got."""

_DIFFERENCES: tuple[Difference, ...] = ("tokens", "text", "finish_reason", "sequence_length")


class Note(Protocol):
    """Records the observation of a request that ended."""

    def __call__(self, number: int, observation: Observation, *, is_wanted: bool) -> None:
        """Record the outcome of request ``number``."""


@dataclass(frozen=True)
class _Answered:
    """A request that the stable server has answered."""

    request: ForwardedRequest
    observation: Observation
    answer: Answer


class Replays:
    """Replays requests within the limits of the table of arms. Runs on a single event loop.

    Args:
        arms: The table of arms.
        open_requests: Requests in flight; replays are added to them.
        note: Receives the observation of each replay.
        upstreams: The servers by their names.
    """

    def __init__(
        self, arms: LiveArms, open_requests: OpenRequests, note: Note, upstreams: Mapping[str, Upstream]
    ) -> None:
        self._arms = arms
        self._open = open_requests
        self._note = note
        self._upstreams = upstreams
        self._queue: ReplayQueue[_Answered] | None = None

    def offer(self, request: ForwardedRequest, observation: Observation, answer: Answer) -> None:
        """Queue a request for replay."""
        if self._queue is None:
            self._queue = ReplayQueue(self._setting, self._replay)
        self._queue.offer(_Answered(request, observation, answer))

    async def close(self) -> None:
        """Stop all replays."""
        if self._queue is not None:
            await self._queue.close()

    def _setting(self) -> ShadowSetting | None:
        return self._arms.read().shadow_at(unix_time_s())

    async def _replay(self, answered: _Answered) -> None:
        table = self._arms.read()
        if table.candidate is None or table.canary_id != answered.observation.canary_id:
            return
        arms: tuple[Arm, ...] = ("candidate",)
        if answered.request.should_repeat:
            arms = ("candidate", "stable")
        begun = {arm: self._open.begin() for arm in arms}
        found: dict[Arm, Observation] = {}
        try:
            asked = [self._ask(table, arm, begun[arm][1], answered) for arm in arms]
            found = dict(zip(arms, await asyncio.gather(*asked), strict=True))
            if any(each.failure for each in found.values()):
                found = {arm: _not_compared(each) for arm, each in found.items()}
        finally:  # the noise floor first, so that no answer is judged without it
            for arm in reversed(arms):
                seen = found.get(arm)
                number = begun[arm][0]
                self._note(number, seen or answered.observation, is_wanted=seen is not None)

    async def _ask(self, table: ArmTable, arm: Arm, arrived_at_s: float, answered: _Answered) -> Observation:
        before = answered.observation
        observation = Observation(
            canary_id=table.canary_id,
            generation=table.generation,
            request_id=before.request_id,
            key=before.key,
            arm=arm,
            arrived_at_s=arrived_at_s,
            oldest_open_at_s=arrived_at_s,
            band=before.band,
            is_replay=True,
            prompt_id=before.prompt_id,
            session_id=before.session_id,
        )
        upstream = self._upstreams[table.settings[arm].socket]
        call = UpstreamCall(answered.request, {arm: upstream}, lambda arm: lambda outcome: None)
        limit_s = table.slow_after_s + _MOST_TIMES * (before.e2e_latency_s or 0.0)
        try:
            await within(limit_s, _read(call, arm))
        except asyncio.TimeoutError:  # else silent replays would keep all others waiting
            return replace(observation, failure="error", fault="no answer in time")
        except DraftproofError:
            pass  # recorded by the call
        if (fault := call.faults.get(arm)) is not None:
            return replace(observation, failure="error", fault=fault.name)
        answer = call.answers[arm]
        observation = replace(
            observation, e2e_latency_s=unix_time_s() - arrived_at_s, num_output_tokens=answer.num_tokens
        )
        if not answered.request.should_repeat:
            return observation
        return _compared(observation, answered, answer)


async def _read(call: UpstreamCall, arm: Arm) -> None:
    async with aclosing(call.ask(arm)) as pieces:
        async for _ in pieces:
            pass


def _compared(observation: Observation, answered: _Answered, answer: Answer) -> Observation:
    differs_in = first_difference(answered.answer, answer)
    if not differs_in:
        return replace(observation, answer="equal")
    divergence = None
    if observation.arm == "candidate":
        texts = answered.answer.whole_text, answer.whole_text
        divergence = Divergence(
            answered.request.prompt,
            "stable",
            differs_in,
            *texts,
            _num_common(*texts) // CHARACTERS_PER_TOKEN,
            str(answered.answer.compared(differs_in))[:200],
            str(answer.compared(differs_in))[:200],
        )
    return replace(observation, answer="diverged", differs_in=differs_in, divergence=divergence)


def _num_common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def first_difference(expected: Answer, answer: Answer) -> Difference:
    """Return the first thing in which two answers differ; "" if they are equal.

    What one server does not tell, such as token ids, cannot differ.
    """
    for what in _DIFFERENCES:
        both = expected.compared(what), answer.compared(what)
        if None not in both and both[0] != both[1]:
            return what
    return ""


def _not_compared(observation: Observation) -> Observation:
    return replace(observation, answer="", differs_in="", divergence=None)
