"""How every program of the checkout ends: its exit code, and errors without a traceback."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pipelines.errors import DraftproofError, InternalError

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT

Verdict = Literal["pass", "fail", "inconclusive"]

EXIT_CODES: Mapping[str, int] = {
    "pass": EXIT_PASS,
    "fail": EXIT_FAIL,
    "inconclusive": EXIT_INCONCLUSIVE,
}


class ProgramFailedError(DraftproofError):
    """Raised when a program that this one ran has failed; it has printed why, so this is not printed."""


def run_program(work: Callable[[], int], result: dict[str, Any] | None = None, code: int = EXIT_FAIL) -> int:
    """Run a program and turn an error or an interrupt into an exit code.

    Other exceptions are defects of ours. A line says so, and their traceback goes into a file.

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
    except SystemExit:  # wrong usage, which is told
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED
    except BaseException as raised:  # a panic in a package written in Rust is no Exception
        error = _told(raised)
    if not isinstance(error, ProgramFailedError):
        print(f"error: {error}", file=sys.stderr, flush=True)
    if result is not None:
        print(json.dumps({**result, "error": str(error)}))
    return code


def _told(raised: BaseException) -> DraftproofError:
    if isinstance(raised, DraftproofError):
        return raised
    if isinstance(raised, OSError):
        return DraftproofError(
            f"a file cannot be read or written: {raised}",
            "free disk space or grant access, then run the command again",
        )
    text = "".join(traceback.format_exception(raised))
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="draftproof-", suffix=".log", delete=False
        ) as log:
            log.write(text)
        place = f"its traceback is in {log.name}"
    except OSError:  # no folder can be written
        place = text
    last = traceback.extract_tb(raised.__traceback__)[-1]
    words = " ".join(str(raised).split())
    return InternalError(
        f"a defect of ours: {type(raised).__name__}: {words:.300} "
        f"({Path(last.filename).name}:{last.lineno}); {place}",
        "please report it with the command",
    )


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def stopped_by_signals(
    stop: Callable[[], object] = _interrupt, signals: Sequence[signal.Signals] = (signal.SIGTERM,)
) -> Iterator[None]:
    """Make SIGTERM interrupt the block like Ctrl-C, so that it can clean up.

    Args:
        stop: Called instead, at each signal.
        signals: Other signals than SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    previous = {number: signal.signal(number, lambda *_: stop()) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
