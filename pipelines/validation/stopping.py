"""End a proof early at SIGTERM or Ctrl-C, with a report of what was compared until then.

The first signal makes every further request fail like one that was cancelled, so its answer is missing and
the verdict is ``inconclusive`` at best. The second signal interrupts the program.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pipelines.errors import RequestCancelledError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_is_stopped = threading.Event()


class StoppedError(RequestCancelledError):
    """A request was not sent, because the proof was stopped."""

    code = "proof_stopped"


@contextmanager
def stopped_early_by_signals() -> Iterator[None]:
    """Let the first SIGTERM or Ctrl-C within the block stop further requests (``stoppable``)."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return

    def stop(number: int, frame: object) -> None:
        if _is_stopped.is_set():
            raise KeyboardInterrupt
        _is_stopped.set()
        print("stopping: the report follows when the requests under way have ended", flush=True)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _is_stopped.clear()


def stoppable(ask: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a function that asks, or raises StoppedError once the proof was stopped."""

    def ask_unless_stopped(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if _is_stopped.is_set():
            raise StoppedError(
                "the proof was stopped",
                values="SIGTERM or Ctrl-C",
                limit="a proof is complete when it ends by itself",
                remedy="run it again, or with fewer prompts (--num-prompts, --quick)",
            )
        return ask(*args, **kwargs)

    return ask_unless_stopped
