"""How every program of the checkout ends: its exit code, and errors without a traceback."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipelines.errors import DraftproofError

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT

EXIT_CODES: Mapping[str, int] = {
    "pass": EXIT_PASS,
    "fail": EXIT_FAIL,
    "inconclusive": EXIT_INCONCLUSIVE,
}
"""Verdict -> exit code."""


class ProgramFailedError(DraftproofError):
    """Raised when a program that this one ran has failed; it has printed why, so this is not printed."""


def run_program(work: Callable[[], int], result: dict[str, Any] | None = None, code: int = EXIT_FAIL) -> int:
    """Run a program and turn an error or an interrupt into an exit code.

    Other exceptions are defects of ours and keep their traceback.

    Args:
        work: Does everything and returns the exit code.
        result: What the last line of standard output says after an error, besides ``error``; None for no
            such line.
        code: Exit code after an error.

    Returns:
        The exit code.
    """
    try:
        return work()
    except DraftproofError as error:
        if not isinstance(error, ProgramFailedError):
            print(f"error: {error}", file=sys.stderr, flush=True)
        if result is not None:
            print(json.dumps({**result, "error": str(error)}))
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make SIGTERM interrupt the block like Ctrl-C, so that it can clean up."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
