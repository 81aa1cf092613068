"""Tries each new guide in a process with limits before it is compiled in one that others share."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import marshal
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.time_limit import within

_PROGRAM = Path(__file__).with_name("guide_trial.py")
_NUM_AT_ONCE = 2
_MOST_WAITING = 32
_LIMIT_S = 30.0
_NUM_REMEMBERED = 1024

Tokens = tuple[list[bytes], list[int]]
"""The bytes of all tokens, the last of which ends the output, and the ids of those without text."""


class GuideTrials:
    """Tries guides in forks of a small process, which starts with the first of them. Thread-safe.

    Args:
        tokens: Returns the vocabulary; None if only schemas are read, without masks.
    """

    def __init__(self, tokens: Callable[[], Tokens] | None = None) -> None:
        self._tokens = tokens
        self._threads = ThreadPoolExecutor(_NUM_AT_ONCE, thread_name_prefix="guide trials")
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: weakref.finalize[..., Any] | None = None
        self._known: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._num_waiting = 0

    async def ask(self, question: Mapping[str, Any], *places: str) -> dict[str, Any]:
        """Return the answer of ``guide_trial.py``; a trial whose caller is cancelled ends.

        Args:
            question: ``kind`` and ``text`` of a guide, or ``schemas``.
            places: The field of the request, or of each of the schemas, for errors.

        Raises:
            InvalidRequestError: The guide is wrong, or exceeds a limit.
            ServerBusyError: Too many wait, or the machine was too busy.
        """
        line = json.dumps(question).encode() + b"\n"
        digest = hashlib.sha256(line).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            answer = self._known[digest]
        else:
            answer = await self._new_answer(line)
            self._known[digest] = answer
            if len(self._known) > _NUM_REMEMBERED:
                self._known.popitem(last=False)
        if "error" in answer:
            raise wrong_guide(places[min(answer["num_passed"], len(places) - 1)], answer["error"])
        return answer

    def close(self) -> None:
        """End the process; the next guide would start another."""
        if self._process is not None:
            self._process()
            self._control = None

    async def _new_answer(self, line: bytes) -> dict[str, Any]:
        if self._num_waiting >= _MOST_WAITING:
            raise _busy(f"{self._num_waiting} guides wait")
        ours, theirs = socket.socketpair()
        job = self._threads.submit(self._exchange, line, ours, theirs)
        self._num_waiting += 1
        try:
            answer = await within(_LIMIT_S, asyncio.wrap_future(job))
        except asyncio.TimeoutError:
            raise _busy(f"it waited {_LIMIT_S:g} s for others") from None
        finally:
            self._num_waiting -= 1
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # ends the trial, and the thread that waits for it
            if job.cancelled():  # before it began; otherwise its thread still uses both, and closes them
                ours.close()
                theirs.close()
        if not answer or "is_busy" in answer:
            raise _busy("the trial of one was not over in time")
        return answer

    def _exchange(self, line: bytes, ours: socket.socket, theirs: socket.socket) -> dict[str, Any]:
        try:
            with ours:
                with theirs, self._lock:
                    self._hand_over(theirs)
                ours.sendall(line)
                pieces = []
                while piece := ours.recv(1 << 16):
                    pieces.append(piece)
            content = b"".join(pieces)
            return {**json.loads(content), "num_passed": len(content) - len(content.lstrip())}
        except (OSError, ValueError):  # nobody waits any more, or the process was killed
            return {}

    def _hand_over(self, connection: socket.socket) -> None:
        """Send the end of a connection to the process, and start it if it does not run."""
        if self._control is not None:
            with suppress(OSError):
                socket.send_fds(self._control, [b"\0"], [connection.fileno()])
                return
        self.close()
        self._control = self._start()
        socket.send_fds(self._control, [b"\0"], [connection.fileno()])

    def _start(self) -> socket.socket:
        package = importlib.util.find_spec("llguidance")
        assert package is not None and package.origin is not None
        packages = str(Path(package.origin).parents[1])  # where Triton's stub may have found it
        control, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    str(_PROGRAM),
                    str(theirs.fileno()),
                    packages,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        assert process.stdin is not None
        with process.stdin:
            marshal.dump(None if self._tokens is None else self._tokens(), process.stdin)
        self._process = weakref.finalize(self, _end, process, control)
        return control


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()


def wrong_guide(place: str, reason: str) -> InvalidRequestError:
    """Return the error of a guide that cannot be compiled."""
    return InvalidRequestError(
        f"the guide cannot be compiled: {place}: {' '.join(reason.split())[:500]}",
        "correct the place that is named, or send a simpler schema or grammar",
    )


def _busy(reason: str) -> ServerBusyError:
    return ServerBusyError(
        f"too many new guides are being compiled: {reason}", "send the request again later"
    )
