"""Runs Triton as a child process, forwards its output, and stops it with all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque

from pipelines.deploy.triton.command import ServerCommand
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.place import TritonPlace
from pipelines.time_limit import within
from pipelines.triton.supervision.model_processes import kill_processes

_TAIL_LINES = 200
_READ_BYTES = 1 << 16
_GONE_TIMEOUT_S = 5.0

# A rare race at startup, when two model processes create shared memory.
_RACE_AT_START = b"boost::interprocess"


class TritonProcess:
    """One run of Triton.

    Attributes:
        ended: Done when the process has ended; its result is the exit code.

    Args:
        command: Command line of Triton.
        place: Sockets and files of Triton.
    """

    def __init__(self, command: ServerCommand, place: TritonPlace) -> None:
        self._place = place
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._rest = b""
        # Not asyncio's pipe: with it, Triton would count as running while a model holds the other end.
        self._output, printed = os.pipe()
        self._is_open = True
        self._process = subprocess.Popen(
            command.arguments,
            cwd=REPOSITORY_ROOT,  # its Python models are imported from there
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
        )
        os.close(printed)
        os.set_blocking(self._output, False)
        asyncio.get_running_loop().add_reader(self._output, self._pass_on)
        self.ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.ended.done()

    @property
    def met_its_race(self) -> bool:
        """Whether it ended because of its race at startup, which a second start rarely hits."""
        return self.has_ended and any(_RACE_AT_START in line for line in (*self._tail, self._rest))

    async def stop(self, patience_s: float) -> bool:
        """Terminate the process, and kill it after a timeout.

        Returns:
            Whether it ended in time.
        """
        if not self.has_ended:
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(patience_s, asyncio.shield(self.ended))
        ended = self.has_ended
        await self.clear()
        return ended

    def kill(self) -> None:
        """Kill the process; ``clear`` cleans up."""
        self._process.kill()

    async def clear(self) -> None:
        """Kill the process and its model processes if they run, and clean up."""
        deadline_s = asyncio.get_running_loop().time() + _GONE_TIMEOUT_S
        if not self.has_ended:
            self._process.kill()
        while kill_processes(self._place.shared_memory_prefix):
            if asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(0.02)
        await self.ended
        if self._is_open:
            self._pass_on()
            asyncio.get_running_loop().remove_reader(self._output)
            os.close(self._output)
            self._is_open = False
        self._place.clear()

    def _pass_on(self) -> None:
        """Forward the output of Triton and its models to our own."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, _READ_BYTES):
                sys.stdout.buffer.write(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._tail.extend(lines)
            asyncio.get_running_loop().remove_reader(self._output)  # all writers have closed the pipe
        sys.stdout.buffer.flush()
