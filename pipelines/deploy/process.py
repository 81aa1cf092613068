"""One process, known by its id and the moment it began, so that a recycled id is never mistaken for it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_KILL_TIMEOUT_S = 5.0  # a killed process that writes a core file needs a moment


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of this machine.

    Attributes:
        pid: Its id; also that of its process group.
        start_ticks: When it began, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this id now; None if there is none or it has ended already."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
        state, start_ticks = fields[0], int(fields[19])
        return None if state in "ZX" else cls(pid, start_ticks)

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def end(self, patience_s: float) -> bool:
        """Ask it to end, and kill it if it has not after ``patience_s``; its children do not outlive it.

        Returns:
            Whether it ended by itself.
        """
        if not self.is_alive:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        ended = self._wait(patience_s)
        # Also after a good end: a model's process that hangs would stay behind.
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
