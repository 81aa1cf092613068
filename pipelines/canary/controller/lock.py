"""The lock of a state file, which only one controller can hold."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import CanaryError


@contextlib.contextmanager
def sole_controller(state: Path) -> Iterator[None]:
    """Hold the lock of a state file, so that no other controller can run; it ends with the process.

    Raises:
        CanaryError: Another controller holds the lock.
    """
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CanaryError(
                "a rollout is already running",
                values=f"{state} has a controller",
                limit="one rollout at a time",
                remedy="wait until it ends, or end it with "
                f"'python -m pipelines.canary abort --state {state}'",
            ) from None
        yield


def has_controller(state: Path) -> bool:
    """Return whether a controller is running."""
    try:
        with sole_controller(state):
            return False
    except CanaryError:
        return True
