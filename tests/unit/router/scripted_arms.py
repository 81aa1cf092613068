"""Arms that follow a script, and a client that records what it receives from them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from pipelines.errors import EngineFailedError, ServerBusyError
from pipelines.router.arms import Arm
from pipelines.router.breaker import Outcome
from pipelines.router.failover import answer_over
from tests.unit.router.virtual_time import run

ALL: tuple[Arm, ...] = ("candidate", "stable", "control")
SLOW_S = 2.0
FOR_EVER_S = float("inf")
DOWN = EngineFailedError("down")
BUSY = ServerBusyError("busy")
CANCELLED_FROM_WITHIN = asyncio.CancelledError("by nobody here")


@dataclass(frozen=True)
class Chunk:
    ids: tuple[int, ...]
    finish: str = ""

    @property
    def is_last(self) -> bool:
        return bool(self.finish)


Step = Chunk | float | BaseException
"""A response, seconds of silence, or a failure."""


def says(*ids: int) -> Chunk:
    return Chunk(ids)


def ends(*ids: int) -> Chunk:
    return Chunk(ids, "stop")


def after(num_tokens: int, steps: Sequence[Step]) -> list[Step]:
    """Return what an arm does that goes on after so many tokens, which take it no time."""
    if not num_tokens:
        return list(steps)
    for number, step in enumerate(steps):
        if isinstance(step, Chunk):
            rest, num_tokens = step.ids[num_tokens:], max(0, num_tokens - len(step.ids))
            if rest or step.finish:
                return [Chunk(rest, step.finish), *steps[number + 1 :]]
            if not num_tokens:
                return list(steps[number + 1 :])
        elif isinstance(step, BaseException) or step == FOR_EVER_S:
            return [step]
    return []


@dataclass
class ScriptedArms:
    """Arms that follow their scripts, from where the client's answer ends; everything is recorded.

    Attributes:
        given: Each arm that was asked for a rest, and the tokens that the client had.
    """

    scripts: dict[Arm, Sequence[Step]]
    hedges: Callable[[Arm], bool] = lambda arm: True
    delivered: list[int] = field(default_factory=list)
    given: list[tuple[Arm, tuple[int, ...]]] = field(default_factory=list)
    asked: list[tuple[Arm, float]] = field(default_factory=list)
    closed: list[tuple[Arm, float]] = field(default_factory=list)
    outcomes: list[tuple[Arm, Outcome]] = field(default_factory=list)

    def ask(self, arm: Arm) -> AsyncGenerator[Chunk, None]:
        if self.delivered:
            self.given.append((arm, tuple(self.delivered)))
        return self._follow(arm, after(len(self.delivered), self.scripts[arm]))

    def deliver(self, chunk: Chunk) -> None:
        self.delivered += chunk.ids

    async def _follow(self, arm: Arm, steps: Sequence[Step]) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        try:
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, Chunk):
                    yield step
                elif step == FOR_EVER_S:
                    await loop.create_future()
                else:
                    await asyncio.sleep(step)
        finally:
            self.closed.append((arm, loop.time()))

    def begin(self, arm: Arm) -> Callable[[Outcome], None]:
        self.asked.append((arm, asyncio.get_running_loop().time()))
        return lambda outcome: self.outcomes.append((arm, outcome))

    def may_hedge(self, arm: Arm) -> bool:
        return self.hedges(arm)


@dataclass
class Received:
    """The chunks that a client received, with their times and the error, if any."""

    chunks: list[tuple[Arm, Chunk]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def ids(self) -> list[int]:
        return [token for _, chunk in self.chunks for token in chunk.ids]

    @property
    def arms(self) -> list[Arm]:
        return [arm for arm, _ in self.chunks]

    @property
    def is_whole(self) -> bool:
        """Whether it ended exactly once, at the end."""
        finishes = [chunk.finish for _, chunk in self.chunks]
        return self.error is None and finishes == [""] * (len(finishes) - 1) + ["stop"]


async def receive(
    arms: ScriptedArms, order: Sequence[Arm], pause_s: float = 0.0, *, streaming: bool = True
) -> Received:
    received = Received()
    try:
        async with aclosing(
            answer_over(list(order), arms, arms.begin, SLOW_S, streaming=streaming)
        ) as chunks:
            async for arm, chunk in chunks:
                received.chunks.append((arm, chunk))
                received.times_s.append(asyncio.get_running_loop().time())
                if pause_s:
                    await asyncio.sleep(pause_s)
    except Exception as error:
        received.error = error
    assert Counter(arm for arm, _ in arms.asked) == Counter(arm for arm, _ in arms.outcomes)
    return received


def answer(
    arms: ScriptedArms, order: Sequence[Arm] = ALL, pause_s: float = 0.0, *, streaming: bool = True
) -> Received:
    return run(receive(arms, order, pause_s, streaming=streaming))
