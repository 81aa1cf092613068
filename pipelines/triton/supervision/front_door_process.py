"""Runs the front door as a child process and replaces it when it ends or hangs.

The gateway owns the listening socket and the front door inherits it, so connections that arrive while the
process is replaced wait instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import Endpoint, near
from pipelines.deploy.triton.place import TritonPlace
from pipelines.places import CODE
from pipelines.time_limit import within
from pipelines.triton.supervision.guard import guarding

_LOG = logging.getLogger(__name__)

_PROBE_INTERVAL_S = 2.0
_STARTS_WITHIN_S = 120.0  # to the first answer, on a machine that loads engines at the same time
_HANGS_AFTER_S = 10.0  # without an answer
_MAX_PAUSE_S = 5.0  # between two starts of a process that keeps ending
_LASTS_S = 30.0  # after which a process counts as having started well
_STOP_PATIENCE_S = 5.0
_LOOK_INTERVAL_S = 0.1


class FrontDoorProcess:
    """The front door of one server, on ``endpoint.ports.openai``.

    Attributes:
        num_restarts: How often the process was replaced.
        answers: Whether it answered the latest probe.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        endpoint: Addresses of the server.
        place: Triton, which the front door ends if the gateway is killed.
        stopping: Ends the server: the front door then refuses new requests and ends after the running ones.

    Raises:
        ServerStartError: The settings are invalid, or the port cannot be listened on.
    """

    def __init__(
        self, directory: Path, endpoint: Endpoint, place: TritonPlace, stopping: asyncio.Event
    ) -> None:
        self.num_restarts = 0
        self.answers = False
        self._directory = directory
        self._environment = guarding(place.shared_memory_prefix)
        settings = FrontDoorSettings.read(endpoint.front_door)
        self._url = f"{settings.url(endpoint.ports.openai)}/health"
        self._options = ["--metrics", near(endpoint.address, endpoint.ports.metrics)]
        self._options += ["--drain-s", str(endpoint.drain_s)]
        if endpoint.front_door is not None:
            self._options += ["--settings", str(endpoint.front_door)]
        self._listening = settings.listen(endpoint.ports.openai)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = stopping
        self._task = asyncio.create_task(self._run())

    @property
    def is_running(self) -> bool:
        """Whether the process runs, and may answer requests."""
        return self._process is not None and self._process.poll() is None

    async def close(self) -> None:
        """End it, and kill it if it does not end in time."""
        self._task.cancel()
        if self._process is not None:
            if self.is_running:
                self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(_STOP_PATIENCE_S, self._ended(self._process))
            self._process.kill()
            self._process.communicate()  # closes its standard input
        self._listening.close()

    async def _run(self) -> None:
        pause_s = 0.1
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                process = self._process = self._start()
            except OSError as error:  # such as too many processes
                _LOG.error("the front door cannot be started: %s", error)
            else:
                await self._watch(process)
                if self._stopping.is_set():
                    return
                _LOG.error("the front door ended with exit code %s, restarting it", process.returncode)
                process.communicate()  # closes its standard input
            self.num_restarts += 1
            pause_s = 0.1 if time.monotonic() - began_s > _LASTS_S else min(2 * pause_s, _MAX_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the process has ended; it is killed when it hangs."""
        probing = asyncio.create_task(self._kill_when_it_hangs(process))
        try:
            await self._ended(process)
        finally:
            probing.cancel()
            self.answers = False

    def _start(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "pipelines.front_door", str(self._directory)),
                *("--fd", str(number), *self._options),
            ],
            cwd=CODE,
            env=self._environment,
            stdin=subprocess.PIPE,  # its end tells the process that the gateway has ended
            pass_fds=(number,),
            start_new_session=True,  # it outlives a gateway that is killed with its process group
        )

    async def _ended(self, process: subprocess.Popen[bytes]) -> None:
        is_told = False
        while process.poll() is None:
            if self._stopping.is_set() and not is_told:
                process.send_signal(signal.SIGTERM)
                is_told = True
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _kill_when_it_hangs(self, process: subprocess.Popen[bytes]) -> None:
        heard_s = time.monotonic() + _STARTS_WITHIN_S - _HANGS_AFTER_S
        timeout = aiohttp.ClientTimeout(total=_HANGS_AFTER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while time.monotonic() - heard_s < _HANGS_AFTER_S:
                await asyncio.sleep(_PROBE_INTERVAL_S)
                try:
                    # Not checked: the certificate is for the name that clients use, not for this address.
                    async with session.get(self._url, ssl=False):
                        heard_s = time.monotonic()
                        self.answers = True
                except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                    self.answers = False
        _LOG.error("the front door does not answer")
        process.kill()
