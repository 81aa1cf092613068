"""Answers one request over several arms: the client sees one stream, whichever arm produces it.

An arm that fails is followed by the next one, which continues after the chunks that the client has. If an arm
is silent for too long, the next one is asked too; the first of them to say something goes on alone (a hedged
request: Dean and Barroso, The Tail at Scale, CACM 2013). If no other arm is left, the request waits for the
new process of an arm whose process ended, and for a place in its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pipelines.errors import (
    EngineFailedError,
    InvalidRequestError,
    ProcessEndedError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
)
from pipelines.router.breaker import Outcome, outcome_of


class Part(Protocol):
    """A part of an answer."""

    @property
    def is_last(self) -> bool:
        """Whether it ends the answer; a stream that ends without such a part has failed."""


Chunk = TypeVar("Chunk", bound=Part)
AskedArm = TypeVar("AskedArm", bound=str, contravariant=True)


class Call(Protocol[AskedArm, Chunk]):
    """One request, and the arms that may answer it.

    An arm is anything with a name that can answer: a pair of one server, or a server of a group.
    """

    def ask(self, arm: AskedArm) -> AsyncGenerator[Chunk, None]:
        """Stream what follows the delivered chunks; each chunk has at least one token or is the last one.

        The generator is closed after the last chunk; closing it earlier cancels the answer. Its exceptions
        are failures of the arm, except those that the client caused: an invalid request, its deadline, its
        cancellation.
        """

    def may_hedge(self, arm: AskedArm) -> bool:
        """Whether the next arm may be asked because this one is slow.

        Hedging every request of a slow server would make it slower still.
        """

    def deliver(self, chunk: Chunk) -> None:
        """Note that the client gets a chunk."""


AnyArm = TypeVar("AnyArm", bound=str)

RETURNS_WITHIN_S = 60.0
"""Time for which a request waits for the process of an arm, if no other arm is left: as long as the gateway
tries to replace it (``RELOAD_TIMEOUT_S`` of its supervisor). After that Triton is restarted, this process
with it."""

_RETRY_S = 0.2

_MOST_DEATHS = 3
"""Processes that may end while they have one request; ``suspects`` finds the cause earlier."""

_CLIENTS_OWN = (InvalidRequestError, RequestTimeoutError, RequestCancelledError)


Begin = Callable[[AnyArm], Callable[[Outcome], None]]
"""Records that an arm is asked; the function that it returns is called once, with the outcome."""


async def answer_over(
    arms: list[AnyArm],
    call: Call[AnyArm, Chunk],
    begin: Begin[AnyArm],
    slow_after_s: float,
    *,
    streaming: bool = True,
) -> AsyncGenerator[tuple[AnyArm, Chunk], None]:
    """Answer one request.

    Args:
        arms: Arms that may be asked, in this order: at least one, none twice. Each is taken out when it is
            asked; what is appended meanwhile may be asked too.
        call: The request.
        begin: Records what is asked.
        slow_after_s: Seconds without a token after which the next arm is asked too.
        streaming: Whether the client receives each chunk as it comes. Otherwise nothing is yielded before the
            end, and then the whole answer of a single arm.

    Yields:
        Each chunk and the arm that produced it.

    Raises:
        RequestTimeoutError: The client's deadline passed.
        RequestCancelledError: The client cancelled.
        InvalidRequestError: The stable pair or the control refused the request, or the candidate did and no
            other arm could be asked. A candidate's limits may be narrower, which is not the client's fault.
        ServerBusyError: No arm answered, and at least one had a full queue.
        ProcessEndedError: The process of an arm ended and did not return within ``RETURNS_WITHIN_S``, or
            returned with a full queue for so long.
        Exception: All arms failed. This is the error of the arm that produced the latest tokens, or of the
            last arm if none produced any.
    """
    attempts = _Attempts(call, begin, slow_after_s)
    failures: _Failures[AnyArm, Chunk] = _Failures()
    try:
        attempts.begin(arms.pop(0))
        while attempts.running:
            attempt, event = await attempts.events.get()
            if attempt not in attempts.running:
                continue  # another arm was faster
            if event is None:
                if arms and attempts.is_silent(attempt) and call.may_hedge(attempt.arm):
                    attempt.is_late = True
                    attempts.begin(arms.pop(0))
                else:
                    attempts.watch(attempt)
            elif isinstance(event, Exception):
                attempts.end(attempt, failures.outcome(attempt, event))
                failures.add(attempt, event)
                if not arms and not attempts.running and failures.may_wait():
                    await asyncio.sleep(_RETRY_S)
                    arms += failures.take_gone()
                if arms and not (attempt.is_late and attempts.running):  # then the next one runs already
                    attempts.begin(arms.pop(0))
            else:
                failures.note_progress()
                attempt.held.append(event)
                attempt.has_spoken = True
                if not (streaming or event.is_last):
                    continue
                failures.speaker = attempt
                arms += attempts.end_others(attempt)
                if event.is_last:
                    attempts.end(attempt, "answered")
                for chunk in attempt.held:
                    call.deliver(chunk)
                    yield attempt.arm, chunk
                attempt.held.clear()
                if event.is_last:
                    return
        assert failures.error is not None
        raise failures.error
    finally:
        await attempts.close()


@dataclass(eq=False)
class _Attempt(Generic[AnyArm, Chunk]):
    """A request to one arm.

    Attributes:
        arm: The arm.
        note: Records the outcome; called once.
        heard_at_s: When the arm was asked or sent its latest chunk.
        is_late: Whether the next arm was asked because this one is silent.
        has_spoken: Whether it has sent anything.
        held: Chunks that the client does not have yet.
    """

    arm: AnyArm
    note: Callable[[Outcome], None]
    heard_at_s: float
    is_late: bool = False
    has_spoken: bool = False
    held: list[Chunk] = field(default_factory=list)


class _Attempts(Generic[AnyArm, Chunk]):
    """The arms that were asked for one answer.

    Attributes:
        running: Those whose next event counts.
        events: Events of all arms in order: a chunk, why the stream ended, or None after a time without
            either.

    Args:
        call: The request.
        begin: Records what is asked.
        slow_after_s: That time.
    """

    def __init__(self, call: Call[AnyArm, Chunk], begin: Begin[AnyArm], slow_after_s: float) -> None:
        self.running: list[_Attempt[AnyArm, Chunk]] = []
        self.events: asyncio.Queue[tuple[_Attempt[AnyArm, Chunk], Chunk | Exception | None]] = asyncio.Queue()
        self._call = call
        self._begin = begin
        self._slow_after_s = slow_after_s
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[_Attempt[AnyArm, Chunk], asyncio.Task[None]] = {}
        self._timers: dict[_Attempt[AnyArm, Chunk], asyncio.TimerHandle] = {}

    def begin(self, arm: AnyArm) -> None:
        """Ask an arm."""
        attempt = _Attempt[AnyArm, Chunk](arm, self._begin(arm), self._loop.time())
        self.running.append(attempt)
        self._tasks[attempt] = self._loop.create_task(self._read(attempt, self._call.ask(arm)))
        self.watch(attempt)

    def watch(self, attempt: _Attempt[AnyArm, Chunk]) -> None:
        """Let ``events`` have None when the arm has been silent for too long, and again if it still is."""
        left_s = self._left_s(attempt)
        wait_s = left_s if left_s > 0 else self._slow_after_s
        self._timers[attempt] = self._loop.call_later(wait_s, self.events.put_nowait, (attempt, None))

    def is_silent(self, attempt: _Attempt[AnyArm, Chunk]) -> bool:
        """Whether the arm has been silent for too long; chunks may wait while the client takes none."""
        return self._left_s(attempt) <= 0

    def end(self, attempt: _Attempt[AnyArm, Chunk], outcome: Outcome) -> None:
        """End an attempt; it is cancelled if it has not ended itself."""
        self.running.remove(attempt)
        self._tasks[attempt].cancel()
        self._timers[attempt].cancel()
        attempt.note(outcome)

    def end_others(self, attempt: _Attempt[AnyArm, Chunk]) -> list[AnyArm]:
        """End all attempts but the one that is ahead; returns their arms, which may be asked again."""
        others = [other for other in self.running if other is not attempt]
        for other in others:
            self.end(other, "timeout" if other.is_late else "cancelled")
        if attempt.is_late:
            attempt.is_late = False
            self.watch(attempt)
        return [other.arm for other in others]

    async def close(self) -> None:
        """Cancel what runs and wait until everything has ended."""
        for attempt in tuple(self.running):
            self.end(attempt, "cancelled")
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _left_s(self, attempt: _Attempt[AnyArm, Chunk]) -> float:
        return attempt.heard_at_s + self._slow_after_s - self._loop.time()

    async def _read(self, attempt: _Attempt[AnyArm, Chunk], answer: AsyncGenerator[Chunk, None]) -> None:
        error: Exception = EngineFailedError(
            f"the arm {attempt.arm} ended an answer early, with neither a last chunk nor an error",
            "the server's log has the cause; send the request again",
        )
        try:
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    attempt.heard_at_s = self._loop.time()
                    self.events.put_nowait((attempt, chunk))
        except Exception as raised:
            error = raised
        finally:  # also if the arm's own code cancelled it
            self.events.put_nowait((attempt, error))


class _Failures(Generic[AnyArm, Chunk]):
    """What went wrong with the attempts at one answer.

    Attributes:
        error: What the client hears of if no arm answers.
        speaker: The attempt that delivered the latest chunk.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.speaker: _Attempt[AnyArm, Chunk] | None = None
        self._lost: set[AnyArm] = set()  # arms whose process ended since the latest chunk of any arm
        self._gone: list[AnyArm] = []  # arms that may be asked again when no other is left
        self._waits_since_s: float | None = None
        self._num_deaths = 0  # processes that ended while they had the request

    def outcome(self, attempt: _Attempt[AnyArm, Chunk], error: Exception) -> Outcome:
        """Return the outcome of an attempt that failed; the end of a process counts once against an arm."""
        is_known = isinstance(error, ProcessEndedError) and attempt.arm in self._lost
        return "unreached" if is_known else outcome_of(error)

    def add(self, attempt: _Attempt[AnyArm, Chunk], error: Exception) -> None:
        """Note that an attempt failed.

        Raises:
            DraftproofError: The same error, if it is the client's own and another arm would not help.
        """
        is_refused_by_candidate = attempt.arm == "candidate" and isinstance(error, InvalidRequestError)
        if isinstance(error, _CLIENTS_OWN) and not is_refused_by_candidate:
            raise error
        has_waited = self._waits_since_s is not None or bool(self._lost and self.speaker)
        if isinstance(error, ServerBusyError) and has_waited:  # the queue of a process that was replaced
            self._gone.append(attempt.arm)
            self.error = self.error or error
            return
        if attempt is self.speaker or not (self.speaker or isinstance(self.error, ServerBusyError)):
            self.error = error
        if isinstance(error, ProcessEndedError):
            self._gone.append(attempt.arm)
            self._lost.add(attempt.arm)
            self._num_deaths += attempt.has_spoken or error.took_request

    def note_progress(self) -> None:
        """Note that an arm has sent a chunk."""
        self._lost.clear()
        self._waits_since_s = None

    def may_wait(self) -> bool:
        """Whether an arm without a process is asked again after a pause."""
        now_s = asyncio.get_running_loop().time()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        is_time_left = now_s + _RETRY_S <= self._waits_since_s + RETURNS_WITHIN_S
        has_hope = bool(self._gone) and not isinstance(self.error, ServerBusyError)
        return has_hope and is_time_left and self._num_deaths < _MOST_DEATHS

    def take_gone(self) -> list[AnyArm]:
        """Return the arms that are asked again."""
        gone, self._gone = self._gone, []
        return gone
