"""One answer over several arms: the client sees one stream, whichever of them gives it.

Each arm that is asked calls for the next one once, when it fails or when no token has come from it for too
long. All that were asked then race for the next token that the client does not have yet; the others are
cancelled. Before the first token that is a hedged request (Dean and Barroso, The Tail at Scale, CACM 2013).
After it, the arm that was asked anew answers from the start, and what the client has already is left out
of its answer::

    client has      a b c
    next arm says   a b c d e        the client gets d e
                    a b x            "differs": it is asked again, for what follows a b c

On runtimes that are exact, arms with one target say the same as long as they share seed and prompt. An arm
with another target goes on from what the client has, so that no answer breaks off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

from pipelines.errors import (
    EngineFailedError,
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
)
from pipelines.routing.arms import Arm
from pipelines.routing.askable import Arms, Chunk
from pipelines.routing.breaker import Outcome

_CLIENTS_OWN = (InvalidRequestError, RequestTimeoutError, RequestCancelledError)


async def answer_over(
    order: Sequence[Arm], arms: Arms[Chunk], slow_after_s: float, *, streaming: bool = True
) -> AsyncGenerator[tuple[Arm, Chunk], None]:
    """Answer one request.

    Args:
        order: Of asking; one arm at least, none twice.
        arms: Answer.
        slow_after_s: Seconds without a token after which the next arm is asked too.
        streaming: Whether the client has each chunk at once. Else nothing is yielded before the end, and then
            the whole answer of one arm, whatever others began to say.

    Yields:
        Chunks, and who gave each.

    Raises:
        RequestTimeoutError: The client's deadline passed.
        RequestCancelledError: The client cancelled.
        InvalidRequestError: An arm other than the candidate refuses the request, or the candidate does and
            no other arm could be asked. A candidate's limits may be narrower, and that is not the client's
            fault.
        ServerBusyError: No arm answered, and one of them may later.
        Exception: What the arm raised that gave the latest tokens, or the last arm where there are none. No
            other arm answers, and all have been cancelled.
    """
    race = _Race(order, arms, slow_after_s, streaming=streaming)
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
class _Attempt:
    """One arm that was asked.

    Attributes:
        arm: Which.
        end: Takes the outcome, once.
        heard_at_s: When it was asked, or its latest chunk came.
        num_seen: Output tokens of the answer as far as it has come, those that it was given included.
        has_called: Whether the next arm was asked because this one is slow.
    """

    arm: Arm
    end: Callable[[Outcome], None]
    heard_at_s: float
    num_seen: int = 0
    has_called: bool = False


@dataclass(frozen=True)
class _Said(Generic[Chunk]):
    chunk: Chunk


@dataclass(frozen=True)
class _Silent:
    """For ``slow_after_s``, when this was noted."""


@dataclass(frozen=True)
class _Ended:
    """Before its last chunk, if it is still in the race."""

    error: Exception


_Event = _Said[Chunk] | _Silent | _Ended


class _Race(Generic[Chunk]):
    """The arms that were asked for one answer.

    Attributes:
        events: What they did, in order; also of those that are no longer in the race.
        is_over: Whether the answer has ended, or cannot go on.
        error: Why it cannot.
    """

    def __init__(
        self, order: Sequence[Arm], arms: Arms[Chunk], slow_after_s: float, *, streaming: bool
    ) -> None:
        self.events: asyncio.Queue[tuple[_Attempt, _Event[Chunk]]] = asyncio.Queue()
        self.is_over = False
        self.error: Exception | None = None
        self._order = order
        self._arms = arms
        self._slow_after_s = slow_after_s
        self._streaming = streaming
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: dict[_Attempt, asyncio.Task[None]] = {}
        self._timers: dict[_Attempt, asyncio.TimerHandle] = {}
        self._spent: set[Arm] = set()  # those that run, or cannot answer
        self._late: set[Arm] = set()  # those that another one overtook
        self._delivered: list[int] = []
        self._last: Chunk | None = None  # that was delivered
        self._is_nobodys_own = False  # whether an arm would say something else than was delivered
        self._speaker: _Attempt | None = None  # gave what was delivered last
        self._kept: dict[_Attempt, list[Chunk]] = {}  # what is not delivered before the end

    def ask_next(self) -> bool:
        """Ask the first arm that is left, if there is one; those that were late come last."""
        left = [arm for arm in self._order if arm not in self._spent]
        if not left:
            return False
        arm = min(left, key=lambda arm: arm in self._late)
        self._spent.add(arm)
        self._ask(arm)
        return True

    def take(self, attempt: _Attempt, event: _Event[Chunk]) -> Sequence[Chunk]:
        """What an event brings the client."""
        if attempt not in self._running:
            return ()
        if isinstance(event, _Said):
            return (self._pass_on if self._streaming else self._keep)(attempt, event.chunk)
        if isinstance(event, _Ended):
            self._fail(attempt, event.error)
        else:
            self._note_silence(attempt)
        return ()

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        for attempt in tuple(self._running):
            self._retire(attempt, "cancelled")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ask(self, arm: Arm) -> None:
        attempt = _Attempt(arm, self._arms.begin(arm), self._loop.time())
        if self._is_nobodys_own and self._last is not None:
            attempt.num_seen = len(self._delivered)
            answer = self._arms.go_on(arm, tuple(self._delivered), self._last)
        else:
            answer = self._arms.ask(arm)
        self._running[attempt] = self._loop.create_task(self._read(attempt, answer))
        self._tasks.append(self._running[attempt])
        self._watch(attempt, self._slow_after_s)

    async def _read(self, attempt: _Attempt, answer: AsyncGenerator[Chunk, None]) -> None:
        error: Exception = EngineFailedError(
            f"the arm {attempt.arm} ended an answer without a word",
            values="neither a last chunk nor an error",
            limit="one of them",
            remedy="the server's log has the cause; send the request again",
        )
        try:
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    attempt.heard_at_s = self._loop.time()
                    self.events.put_nowait((attempt, _Said(chunk)))
        except Exception as raised:
            error = raised
        finally:  # also if it was cancelled from within
            self.events.put_nowait((attempt, _Ended(error)))

    def _watch(self, attempt: _Attempt, wait_s: float) -> None:
        self._timers[attempt] = self._loop.call_later(wait_s, self.events.put_nowait, (attempt, _Silent()))

    def _note_silence(self, attempt: _Attempt) -> None:
        left_s = attempt.heard_at_s + self._slow_after_s - self._loop.time()
        if left_s > 0:
            self._watch(attempt, left_s)
        elif self._arms.may_hedge(attempt.arm) and self.ask_next():
            attempt.has_called = True
        else:
            self._watch(attempt, self._slow_after_s)

    def _pass_on(self, attempt: _Attempt, chunk: Chunk) -> Sequence[Chunk]:
        """Give the client what it does not have yet."""
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

    def _keep(self, attempt: _Attempt, chunk: Chunk) -> Sequence[Chunk]:
        """Give the client the whole answer once it is there."""
        is_last = self._arms.is_last(chunk)
        attempt.num_seen += len(self._arms.output_ids(chunk))
        kept = self._kept.setdefault(attempt, [])
        kept.append(chunk)
        if is_last or all(other is attempt or other.num_seen < attempt.num_seen for other in self._running):
            self._win(attempt, is_last=is_last)
        return kept if is_last else ()

    def _win(self, attempt: _Attempt, *, is_last: bool) -> None:
        """The arm is ahead: those that were to help out are not needed, and one that was late is too late."""
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

    def _fail(self, attempt: _Attempt, error: Exception) -> None:
        self._retire(attempt, _outcome_of(error))
        is_refused_by_candidate = attempt.arm == "candidate" and isinstance(error, InvalidRequestError)
        if isinstance(error, _CLIENTS_OWN) and not is_refused_by_candidate:
            self.is_over, self.error = True, error
            return
        if attempt is self._speaker or not (self._speaker or isinstance(self.error, ServerBusyError)):
            self.error = error
        if not attempt.has_called:
            self.ask_next()
        self.is_over = not self._running

    def _differ(self, attempt: _Attempt) -> None:
        """Its target is another one than the speaker's, or one whose answers depend on the batch."""
        self._is_nobodys_own = True
        self._retire(attempt, "differs")
        self._ask(attempt.arm)

    def _retire(self, attempt: _Attempt, outcome: Outcome) -> None:
        self._running.pop(attempt).cancel()
        self._timers.pop(attempt).cancel()
        attempt.end(outcome)


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, ServerBusyError):
        return "busy"
    if isinstance(error, InvalidRequestError):
        return "refused"
    return "cancelled" if isinstance(error, _CLIENTS_OWN) else "error"
