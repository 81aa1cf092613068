"""Runs work on threads that do not keep a program from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")


def in_background(work: Callable[[], _Result]) -> Future[_Result]:
    """Run work on a thread of its own, which ends with the program at the latest."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
