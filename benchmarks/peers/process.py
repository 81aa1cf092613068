"""Run a peer's program and communicate with it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import (
    Loaded,
    LoadRequest,
    Outcome,
    Request,
    RunRequest,
    read_outcome,
    write_request,
)
from pipelines.errors import PeerError

_ROOT = Path(__file__).resolve().parents[2]
_END_TIMEOUT_S = 10.0  # for a program to end after its stdin was closed


class PeerProcess:
    """A running program, until ``close``.

    Args:
        name: Name for error messages.
        command: Command to run.
        log: File for the output of the program.
        environment: Additional environment variables.
        timeout_s: Time limit for one response, also for loading.

    Raises:
        PeerError: The command could not be started.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], timeout_s: float
    ) -> None:
        self._name, self._log, self._timeout_s = name, log, timeout_s
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("w", encoding="utf-8") as file:
                self._process = subprocess.Popen(
                    command,
                    cwd=_ROOT,
                    env={**os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    text=True,
                    start_new_session=True,  # so that its child processes can be killed with it
                )
        except OSError as error:
            raise self._failed(f"could not be started: {error}") from None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")  # the end

    def load(self, request: LoadRequest) -> Loaded:
        """Load models in the program.

        Raises:
            PeerError: The program failed, ended or did not respond in time.
        """
        document = self._ask(request)
        return Loaded(document["versions"], document["notes"])

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts.

        Raises:
            PeerError: See ``load``; also if a prompt was not answered.
        """
        outcome = read_outcome(self._ask(request))
        if len(outcome.answers) != len(request.prompts):
            raise self._failed(f"{len(outcome.answers)} answers to {len(request.prompts)} prompts")
        return outcome

    def _ask(self, request: Request) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(write_request(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self._timeout_s)
        except (OSError, queue.Empty) as error:
            raise self._failed(
                f"no response within {self._timeout_s:g} s" if isinstance(error, queue.Empty) else repr(error)
            ) from None
        if not line:
            raise self._failed(f"exited with code {self._process.wait()}: {self._last_line()}")
        document: dict[str, Any] = json.loads(line)
        if "error" in document:
            raise self._failed(document["error"])
        return document

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")

    def _failed(self, values: str) -> PeerError:
        return PeerError(
            f"{self._name} failed: {' '.join(values.split())}",
            f"read {self._log}; the other engines are measured without it",
        )

    def close(self) -> None:
        """End the program, and kill it if it does not end in time."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(_END_TIMEOUT_S)
