"""Answers one request over several arms: the client sees one stream, whichever arm produces it.

When an arm fails, or produces no token for too long, the next arm is asked too. The arms that were asked then
race for the next token that the client does not have yet, and the losers are cancelled. Before the first
token this is a hedged request (Dean and Barroso, The Tail at Scale, CACM 2013). After it, the next arm
answers from the start, and the tokens that the client already has are skipped::

    client has      a b c
    next arm says   a b c d e        the client gets d e
                    a b x            "differs": it is asked to continue after a b c

On exact runtimes, arms with the same target give the same answer to the same prompt and seed. An arm with
another target continues from the tokens that the client has, so no answer breaks off. So does an arm whose
process was replaced: if no other arm is left, the request waits for it, and for a place in its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
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

Chunk = TypeVar("Chunk")
AskedArm = TypeVar("AskedArm", bound=str, contravariant=True)


class ArmClient(Protocol[AskedArm, Chunk]):
    """Sends one request to arms and interprets their chunks.

    An arm is anything with a name that can answer: a pair of one server, or a server of a fleet.
    """

    def ask(self, arm: AskedArm) -> AsyncGenerator[Chunk, None]:
        """Stream the answer from its start; each chunk has at least one token or is the last one.

        The generator is closed after the last chunk; closing it earlier cancels the answer. Its exceptions
        are failures of the arm, except those that the client caused: an invalid request, its deadline, its
        cancellation.
        """

    def resume(self, arm: AskedArm, output_ids: Sequence[int], last: Chunk) -> AsyncGenerator[Chunk, None]:
        """Stream what follows the output tokens that the client has; ``last`` is its latest chunk."""

    def begin(self, arm: AskedArm) -> Callable[[Outcome], None]:
        """Record that an arm is asked; the returned function is called once, with the outcome."""

    def may_hedge(self, arm: AskedArm) -> bool:
        """Whether the next arm may be asked because this one is slow.

        Hedging every request of a slow server would make it slower still.
        """

    def output_ids(self, chunk: Chunk) -> Sequence[int]:
        """Return the new output tokens of a chunk."""

    def is_last(self, chunk: Chunk) -> bool:
        """Whether a chunk ends the answer; a stream that ends without one has failed."""

    def without_first(self, chunk: Chunk, num_tokens: int) -> Chunk:
        """Return the chunk without its first tokens; its counts over the whole answer stay."""


Arm = TypeVar("Arm", bound=str)

RETURNS_WITHIN_S = 60.0
"""Time for which a request waits for the process of an arm, if no other arm is left: as long as the gateway
tries to replace it (``RELOAD_TIMEOUT_S`` of its supervisor). After that Triton is restarted, this process
with it."""

_RETRY_S = 0.2

_MOST_DEATHS = 3
"""Processes that may end while they have one request; ``suspects`` finds the cause earlier."""

_CLIENTS_OWN = (InvalidRequestError, RequestTimeoutError, RequestCancelledError)


async def answer_over(
    order: Sequence[Arm],
    arms: ArmClient[Arm, Chunk],
    slow_after_s: float,
    *,
    streaming: bool = True,
    resumes: bool = False,
) -> AsyncGenerator[tuple[Arm, Chunk], None]:
    """Answer one request.

    Args:
        order: Arms in the order in which they are asked: at least one, none twice.
        arms: Sends the request to an arm.
        slow_after_s: Seconds without a token after which the next arm is asked too.
        streaming: Whether the client receives each chunk as it comes. Otherwise nothing is yielded before the
            end, and then the whole answer of a single arm.
        resumes: Whether an arm that is asked after the first token continues from the delivered ones, instead
            of answering from the start.

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
    race = _Race(order, arms, slow_after_s, streaming=streaming, resumes=resumes)
    try:
        race.ask_next()
        while not race.is_over:
            attempt, event = await race.events.get()
            for chunk in race.take(attempt, event):
                yield attempt.arm, chunk
        if race.error is not None:
            raise race.error
    finally:
        await race.close()


@dataclass(eq=False)
class _Attempt(Generic[Arm]):
    """A request to one arm.

    Attributes:
        arm: The arm.
        end: Records the outcome; called once.
        heard_at_s: When the arm was asked or sent its latest chunk.
        num_seen: Output tokens that it has sent, including those that it was told to continue from.
        has_called: Whether the next arm was asked because this one is slow.
        has_spoken: Whether it has sent anything.
    """

    arm: Arm
    end: Callable[[Outcome], None]
    heard_at_s: float
    num_seen: int = 0
    has_called: bool = False
    has_spoken: bool = False


@dataclass(frozen=True)
class _Said(Generic[Chunk]):
    chunk: Chunk


@dataclass(frozen=True)
class _Silent:
    """The arm sent nothing for ``slow_after_s``."""


@dataclass(frozen=True)
class _Ended:
    """The stream ended; with a failure, if the arm is still in the race."""

    error: Exception


_Event = _Said[Chunk] | _Silent | _Ended


class _Race(Generic[Arm, Chunk]):
    """The arms that were asked for one answer.

    Attributes:
        events: Events of all arms in order, including arms that have left the race.
        is_over: Whether the answer is complete or has failed.
        error: Why it failed.
    """

    def __init__(
        self,
        order: Sequence[Arm],
        arms: ArmClient[Arm, Chunk],
        slow_after_s: float,
        *,
        streaming: bool,
        resumes: bool,
    ) -> None:
        self.events: asyncio.Queue[tuple[_Attempt[Arm], _Event[Chunk]]] = asyncio.Queue()
        self.is_over = False
        self.error: Exception | None = None
        self._order = order
        self._arms = arms
        self._slow_after_s = slow_after_s
        self._streaming = streaming
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: dict[_Attempt[Arm], asyncio.Task[None]] = {}
        self._timers: dict[_Attempt[Arm], asyncio.TimerHandle] = {}
        self._spent: set[Arm] = set()  # those that run, or cannot answer
        self._late: set[Arm] = set()  # arms that another one overtook
        self._delivered: list[int] = []
        self._last: Chunk | None = None  # the last delivered chunk
        self._resumes = resumes  # whether arms are asked to continue after the delivered tokens
        self._gone: set[Arm] = set()  # arms that are asked again when no other is left
        self._lost: set[Arm] = set()  # arms whose process ended since the last delivered chunk
        self._gone_at_s: float | None = None  # since when no other arm is left
        self._num_deaths = 0  # processes that ended while they had the request
        self._speaker: _Attempt[Arm] | None = None  # produced the last delivered chunk
        self._kept: dict[_Attempt[Arm], list[Chunk]] = {}  # chunks held until the end, without streaming

    def ask_next(self, after_s: float = 0.0) -> bool:
        """Ask the next arm that is left, slow ones last; False if none is left."""
        left = [arm for arm in self._order if arm not in self._spent]
        if not left:
            return False
        arm = min(left, key=lambda arm: arm in self._late)
        self._spent.add(arm)
        self._ask(arm, after_s)
        return True

    def take(self, attempt: _Attempt[Arm], event: _Event[Chunk]) -> Sequence[Chunk]:
        """Handle an event and return the chunks that it delivers to the client."""
        if attempt not in self._running:
            return ()
        if isinstance(event, _Said):
            attempt.has_spoken = True
            return (self._pass_on if self._streaming else self._keep)(attempt, event.chunk)
        if isinstance(event, _Ended):
            self._fail(attempt, event.error)
        else:
            self._note_silence(attempt)
        return ()

    async def close(self) -> None:
        """Cancel all running requests and wait until they have ended."""
        for attempt in tuple(self._running):
            self._retire(attempt, "cancelled")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ask(self, arm: Arm, after_s: float = 0.0) -> None:
        attempt = _Attempt(arm, self._arms.begin(arm), self._loop.time() + after_s)
        if self._resumes and self._last is not None:
            attempt.num_seen = len(self._delivered)
            answer = self._arms.resume(arm, tuple(self._delivered), self._last)
        else:
            answer = self._arms.ask(arm)
        self._running[attempt] = self._loop.create_task(self._read(attempt, answer, after_s))
        self._tasks.append(self._running[attempt])
        self._watch(attempt, self._slow_after_s)

    async def _read(
        self, attempt: _Attempt[Arm], answer: AsyncGenerator[Chunk, None], after_s: float
    ) -> None:
        error: Exception = EngineFailedError(
            f"the arm {attempt.arm} ended an answer early",
            values="neither a last chunk nor an error",
            limit="one of both must end an answer",
            remedy="the server's log has the cause; send the request again",
        )
        try:
            if after_s:
                await asyncio.sleep(after_s)
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    attempt.heard_at_s = self._loop.time()
                    self.events.put_nowait((attempt, _Said(chunk)))
        except Exception as raised:
            error = raised
        finally:  # also if the arm's own code cancelled it
            self.events.put_nowait((attempt, _Ended(error)))

    def _watch(self, attempt: _Attempt[Arm], wait_s: float) -> None:
        self._timers[attempt] = self._loop.call_later(wait_s, self.events.put_nowait, (attempt, _Silent()))

    def _note_silence(self, attempt: _Attempt[Arm]) -> None:
        left_s = attempt.heard_at_s + self._slow_after_s - self._loop.time()
        if left_s > 0:
            self._watch(attempt, left_s)
        elif self._arms.may_hedge(attempt.arm) and self.ask_next():
            attempt.has_called = True
        else:
            self._watch(attempt, self._slow_after_s)

    def _pass_on(self, attempt: _Attempt[Arm], chunk: Chunk) -> Sequence[Chunk]:
        """Deliver the tokens of a chunk that the client does not have yet."""
        token_ids, is_last = list(self._arms.output_ids(chunk)), self._arms.is_last(chunk)
        missing = self._delivered[attempt.num_seen :]
        num_known = min(len(missing), len(token_ids))
        attempt.num_seen += len(token_ids)
        is_short = is_last and attempt.num_seen < len(self._delivered)
        if is_short or missing[:num_known] != token_ids[:num_known]:
            self._differ(attempt)
            return ()
        if missing and num_known == len(token_ids) and not is_last:
            return ()
        self._speaker = attempt
        self._delivered += token_ids[num_known:]
        self._last = self._arms.without_first(chunk, num_known) if num_known else chunk
        self._win(attempt, is_last=is_last)
        return (self._last,)

    def _keep(self, attempt: _Attempt[Arm], chunk: Chunk) -> Sequence[Chunk]:
        """Hold a chunk back and deliver the whole answer with the last one."""
        is_last = self._arms.is_last(chunk)
        attempt.num_seen += len(self._arms.output_ids(chunk))
        kept = self._kept.setdefault(attempt, [])
        kept.append(chunk)
        if is_last or all(other is attempt or other.num_seen < attempt.num_seen for other in self._running):
            self._win(attempt, is_last=is_last)
        return kept if is_last else ()

    def _win(self, attempt: _Attempt[Arm], *, is_last: bool) -> None:
        """Cancel the other arms: this one is ahead of them."""
        self._gone_at_s = None
        self._lost.clear()
        for other in tuple(self._running):
            if other is attempt:
                continue
            self._spent.discard(other.arm)
            if other.has_called:
                self._late.add(other.arm)
            self._retire(other, "timeout" if other.has_called else "cancelled")
        if is_last:
            self._retire(attempt, "answered")
            self.is_over, self.error = True, None
        elif attempt.has_called:
            attempt.has_called = False
            self._watch(attempt, self._slow_after_s)

    def _fail(self, attempt: _Attempt[Arm], error: Exception) -> None:
        has_no_process = isinstance(error, ProcessEndedError)
        is_known = has_no_process and attempt.arm in self._lost  # counts once against the arm
        self._retire(attempt, "unreached" if is_known else outcome_of(error))
        is_refused_by_candidate = attempt.arm == "candidate" and isinstance(error, InvalidRequestError)
        if isinstance(error, _CLIENTS_OWN) and not is_refused_by_candidate:
            self.is_over, self.error = True, error
            return
        # A request that lost its process is kept although the queue of the next one is full.
        has_waited = self._gone_at_s is not None or bool(self._lost and self._delivered)
        is_kept = isinstance(error, ServerBusyError) and has_waited
        if not is_kept and (
            attempt is self._speaker or not (self._speaker or isinstance(self.error, ServerBusyError))
        ):
            self.error = error
        if has_no_process or is_kept:
            self._gone.add(attempt.arm)
        if isinstance(error, ProcessEndedError):
            self._lost.add(attempt.arm)
            self._num_deaths += attempt.has_spoken or error.took_request
        if not attempt.has_called:
            self.ask_next()
        if not self._running and self._gone and not isinstance(self.error, ServerBusyError):
            self._wait_for_process()
        self.is_over = not self._running

    def _wait_for_process(self) -> None:
        """Ask the arms that are gone again after a pause, unless that took too long already."""
        now_s = self._loop.time()
        if self._gone_at_s is None:
            self._gone_at_s = now_s
        if now_s + _RETRY_S > self._gone_at_s + RETURNS_WITHIN_S or self._num_deaths >= _MOST_DEATHS:
            return
        self._resumes = True
        self._spent -= self._gone
        self._gone.clear()
        self.ask_next(_RETRY_S)

    def _differ(self, attempt: _Attempt[Arm]) -> None:
        """Make an arm continue from the delivered tokens, because its own answer differs from them."""
        self._resumes = True
        self._retire(attempt, "differs")
        self._ask(attempt.arm)

    def _retire(self, attempt: _Attempt[Arm], outcome: Outcome) -> None:
        self._running.pop(attempt).cancel()
        self._timers.pop(attempt).cancel()
        attempt.end(outcome)
