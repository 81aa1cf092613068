"""Identify a process by its id and start time, so that a reused id is not mistaken for it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_KILL_TIMEOUT_S = 5.0  # writing a core file takes time


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of this machine.

    Attributes:
        pid: Its id, which is also that of its process group.
        start_ticks: Its start time, clock ticks since boot.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the process that has this id now; None if there is none or it has ended."""
        fields = _fields(pid)
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def parent(self) -> int:
        """Return the id of its parent; 0 if it has ended."""
        return int(_fields(self.pid)[1])

    @property
    def is_stopped(self) -> bool:
        """Return whether it is stopped by a signal."""
        return _fields(self.pid)[0] in "Tt"

    @property
    def is_alive(self) -> bool:
        """Return whether this process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def kill(self) -> None:
        """Kill it if it still runs."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, timeout_s: float) -> bool:
        """Terminate it, kill it after ``timeout_s`` if necessary, and kill its process group.

        Returns:
            Whether it ended without being killed.
        """
        if not self.is_alive:
            return True
        self.send(signal.SIGTERM)
        ended = self._wait(timeout_s)
        # Also if it has ended by itself, because a hanging process of a model would be left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._wait(_KILL_TIMEOUT_S)
        return ended

    def _wait(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while self.is_alive:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return True


def processes_with(text: str) -> Iterator[tuple[ProcessIdentity, list[bytes]]]:
    """Find the other processes of this user whose command line contains a text.

    Yields:
        Each process and its command line.
    """
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        with contextlib.suppress(OSError):  # it has ended or belongs to another user
            command = (directory / "cmdline").read_bytes()
            if text.encode() in command and pid != os.getpid() and (found := ProcessIdentity.of(pid)):
                yield found, command.split(b"\0")


def _fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; X and no parent if there is no process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["X", "0"]
    return stat.rpartition(")")[2].split()  # the name before it may contain spaces
