"""Starts a process that a failed test does not leave behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def started(*arguments: Any, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process, with the arguments of ``Popen``, and kill it at the end if it still runs."""
    with subprocess.Popen(*arguments, **options) as process:
        try:
            yield process
        finally:
            process.kill()
