"""End a proof early at SIGTERM, at Ctrl-C or when its time is over, with a report of what was compared.

Requests under way are cancelled, and every further one fails in the same way, so their answers are missing
and the verdict is ``inconclusive`` at best. A second signal interrupts the program.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pipelines.errors import DraftproofError, RequestCancelledError
from pipelines.program import stopped_by_signals

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_SECONDS = 60.0  # of a minute
_reason: list[str] = []
"""Message and remedy of the error because of which the proof ends early; empty while it does not."""
_is_stopped = threading.Event()
_cancels: set[Callable[[], object]] = set()
"""End the requests under way."""


class StoppedError(RequestCancelledError):
    """A request was not sent, or was cancelled, because the proof was stopped."""

    code = "proof_stopped"


def stop(why: str, remedy: str) -> None:
    """Cancel all requests, also further ones; of several reasons the first stands."""
    if not _reason:
        print(f"stopping, {why}: requests under way are cancelled, and the report follows", flush=True)
        _reason[:] = f"the proof was stopped, {why}", remedy
        _is_stopped.set()
        # On a thread of its own: a signal may have come while this one held a lock of its client.
        threading.Thread(target=_cancel_all, daemon=True).start()


def _cancel_all() -> None:
    for cancel in tuple(_cancels):
        cancel()


@contextmanager
def cancelled_when_stopped(cancel: Callable[[], object]) -> Iterator[None]:
    """Call ``cancel`` if the proof is stopped within the block, or was before; perhaps twice."""
    _cancels.add(cancel)
    try:
        if _reason:
            cancel()
        yield
    finally:
        _cancels.discard(cancel)


def pause(seconds: float) -> None:
    """Sleep until the proof is stopped at the latest."""
    _is_stopped.wait(seconds)


def stop_error() -> StoppedError | None:
    """Return the error because of which the proof ends early; None while it does not."""
    return StoppedError(*_reason) if _reason else None


def stoppable(ask: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a function that asks, or raises StoppedError once the proof was stopped, also meanwhile."""

    def ask_unless_stopped(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if error := stop_error():
            raise error
        try:
            return ask(*args, **kwargs)
        except (DraftproofError, ValueError):  # gRPC raises a ValueError where a channel is closed already
            if error := stop_error():
                raise error from None
            raise

    return ask_unless_stopped


@contextmanager
def stopped_early(minutes: int | None) -> Iterator[float]:
    """Let the first SIGTERM or Ctrl-C within the block, or the end of its time, stop the proof.

    Args:
        minutes: Time of the proof; None for any.

    Yields:
        Clock time at which it ends, in seconds of ``time.monotonic``.
    """
    seconds = math.inf if minutes is None else _SECONDS * minutes
    over = f"its {minutes} min are over", "give --minutes more"
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop, over)
    timer.daemon = True
    timer.start()
    try:
        with stopped_by_signals(_stop_or_interrupt, (signal.SIGTERM, signal.SIGINT)):
            yield time.monotonic() + seconds
    finally:
        timer.cancel()
        _reason.clear()
        _is_stopped.clear()


def _stop_or_interrupt() -> None:
    if _reason:
        raise KeyboardInterrupt
    stop("SIGTERM or Ctrl-C", "run it again")
