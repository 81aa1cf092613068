"""Runs Triton as a child process, forwards its output, and stops it with all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pipelines.deploy.ports import Endpoint
from pipelines.deploy.triton.command import ServerCommand, triton_command
from pipelines.deploy.triton.nvidia_triton import process_to_end
from pipelines.deploy.triton.place import TritonPlace
from pipelines.places import CODE
from pipelines.process import ProcessIdentity
from pipelines.time_limit import within
from pipelines.triton.supervision.guard import find_model_processes, kill_processes

_GONE_TIMEOUT_S = 5.0

# A rare race at startup, when two model processes create shared memory.
_RACE_AT_START = b"boost::interprocess"

# Triton takes a model's process for dead that did not run for a second while it loaded, and then waits for
# its end, for ever and without a word (python_backend 24.10, ``StubLauncher::ReceiveMessageFromStub``).
_LOADED = re.compile(rb"model (\w+) has loaded")  # says the process
_TAKEN = re.compile(rb"successfully loaded '(\w+)'")  # says Triton, a moment later
_TAKEN_WITHIN_S = 10.0


class TritonProcess:
    """One run of Triton.

    Attributes:
        ended: Done when the process has ended; its result is the exit code.
        met_its_race: Whether it met a race of its startup, which a second start rarely meets.

    Args:
        command: Command line of Triton.
        place: Sockets and files of Triton.
    """

    def __init__(self, command: ServerCommand, place: TritonPlace) -> None:
        self.met_its_race = False
        self._untaken: dict[str, float] = {}  # model -> when its process had loaded
        self._place, self._program, self._noise = place, command.arguments[0], command.noise
        self._process = subprocess.Popen(
            command.arguments,
            cwd=CODE,  # its Python models are imported from there
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        # A model's process may hold the other end of the pipe after Triton has ended.
        self._forwarding = threading.Thread(target=self._forward, daemon=True)
        self._forwarding.start()
        self.ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))

    @classmethod
    def start(cls, directory: Path, place: TritonPlace, endpoint: Endpoint) -> TritonProcess:
        """Start Triton with the repository of a run directory.

        Raises:
            ServerStartError: A requirement is missing.
        """
        return cls(triton_command(directory, place, endpoint), place)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.ended.done()

    def find_models(self) -> dict[str, ProcessIdentity]:
        """Return the processes of the models by the models' names; their shared memory becomes private."""
        self._place.close_shared_memory()
        return find_model_processes(self._place.shared_memory_prefix)

    def given_up(self) -> list[str]:
        """Return the models that have loaded and that Triton will never report; each of them once."""
        now_s = time.monotonic()
        found = [model for model, at_s in self._untaken.copy().items() if now_s - at_s > _TAKEN_WITHIN_S]
        for model in found:
            self._untaken.pop(model, None)
        self.met_its_race |= bool(found)
        return found

    async def stop(self, patience_s: float) -> None:
        """Terminate the process, and kill it after a timeout."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_to_end(self._program, self._process.pid, self._place), signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(patience_s, asyncio.shield(self.ended))
        await self.clear()

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
        await asyncio.to_thread(self._forwarding.join, _GONE_TIMEOUT_S)
        self._place.clear()

    def _forward(self) -> None:
        """Write the output of Triton and its models to our own."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.met_its_race |= _RACE_AT_START in line
                if loaded := _LOADED.search(line):
                    self._untaken[loaded[1].decode()] = time.monotonic()
                if taken := _TAKEN.search(line):
                    self._untaken.pop(taken[1].decode(), None)
                if self._noise and self._noise.fullmatch(line):
                    continue
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
