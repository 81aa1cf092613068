"""An HTTP proxy in front of an OpenAI-compatible server that plants one fault in its answers.

It remembers the answers of the server, which is deterministic, so that many faults are tried on one real
server in little time.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.loopback_http import SilentHandler, served
from tests.support.planted_faults import Body, Events, Fault

_PROBE = "The quick brown fox"  # in questions about what a server can do, which have no faults
_IDENTITY = (
    "prompt",
    "messages",
    "tools",
    "stop",
    "response_format",
    "n",
    "echo",
    "temperature",
    "max_tokens",
)
_RANDOM = ("id", "created")
_SLOWER = 3.0


@dataclass
class Memory:
    """The answers of a server.

    Attributes:
        server: Its address, without ``/v1``.
        answers: Path and request -> status, and content or events.
    """

    server: str
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def ask(self, path: str, request: Body | None) -> tuple[int, bytes]:
        key = json.dumps([path, request], sort_keys=True)
        if key not in self.answers:
            # Servers close idle connections; a request on one of those would count as a fault.
            with httpx.Client(base_url=self.server, timeout=600, trust_env=False) as http:
                response = http.get(path) if request is None else http.post(path, json=request)
            self.answers[key] = response.status_code, response.content
        return self.answers[key]


@dataclass
class Planted:
    """What a proxy has done.

    Attributes:
        url: Its address.
        hits: Questions whose answers it changed.
    """

    url: str = ""
    hits: set[str] = field(default_factory=set)


@contextmanager
def fault_proxy(
    server: str | Memory,
    fault: Fault,
    *,
    one_in: int = 1,
    most: int | None = None,
    with_ids: bool = True,
    event_s: float = 0.0,
) -> Iterator[Planted]:
    """Run a proxy with a fault during the block.

    Args:
        server: Address of the server, or its remembered answers.
        fault: The fault.
        one_in: In which share of the questions it is planted, always in the same ones.
        most: In how many questions it is planted at most; None for all.
        with_ids: Whether answers have token ids where the client asks for them.
        event_s: Time before each event of a stream, and each token of a whole answer; 0 sends all at once.
    """
    memory = server if isinstance(server, Memory) else Memory(server)
    planted, lock, closing = Planted(), threading.Lock(), threading.Event()
    times: Counter[str] = Counter()

    def is_planted(question: str) -> bool:
        """Decide whether a question that the fault changes gets it."""
        with lock:
            if int(question[:8], 16) % one_in:
                return False
            if question not in planted.hits and most is not None and len(planted.hits) >= most:
                return False
            planted.hits.add(question)
            return True

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            # The server counts no draft tokens of answers that are remembered.
            self._send(*((404, b"") if self.path == "/metrics" else memory.ask(self.path, None)))

        def do_POST(self) -> None:
            with suppress(ConnectionError):  # the client has left
                self._answer(json.loads(self.read_body()))

        def _answer(self, request: Body) -> None:
            if not with_ids:
                request.pop("return_token_ids", None)
            status, right = memory.ask(self.path, request)
            question = _question(request)
            with lock:
                num_before = times[question]
                times[question] += 1
            if status != httpx.codes.OK or _PROBE in json.dumps(
                request.get("prompt") or request.get("messages")
            ):
                self._send(status, right)
                return
            events = events_of(right)
            wrong = _changed(memory, self.path, request, fault, num_before)
            is_changed = comparable(wrong) != comparable(events) or _is_sent(fault, request)
            if not is_changed or not is_planted(question):
                self._send(status, right)
            elif fault.sent == "busy" or (fault.sent == "busy first" and num_before == 0):
                self._send(429, b'{"error": {"message": "busy"}}', {"Retry-After": "0"})
            elif fault.sent == "slow":
                self._send(200, right, slower=_SLOWER)
            elif fault.sent == "status 500":
                self._send(500, b'{"error": {"message": "CUDA error"}}')
            elif fault.sent == "garbage":
                self._send(200, b"<html>busy</html>")
            elif fault.sent == "silent":
                closing.wait(60)
            elif request.get("stream"):
                part = events[: len(events) // 2] if fault.sent == "cut" else wrong
                lines = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in part)
                self._send(
                    200, lines + (b"" if fault.sent in ("cut", "without an end") else b"data: [DONE]\n\n")
                )
            else:
                self._send(200, json.dumps(wrong[0]).encode())

        def _send(self, status: int, content: bytes, headers: Any = None, slower: float = 1.0) -> None:
            if not event_s or status != httpx.codes.OK:
                self.send_whole(status, content, headers)
                return
            self.send_response(status)
            self.end_headers()
            for line in content.splitlines(keepends=True):
                time.sleep(slower * event_s * _num_events(line))
                self.wfile.write(line)
                self.wfile.flush()

    with served(Handler) as planted.url:
        try:
            yield planted
        finally:
            closing.set()


def _is_sent(fault: Fault, request: Body) -> bool:
    of_streams = fault.sent in ("cut", "without an end")
    return bool(fault.sent) and (not of_streams or bool(request.get("stream")))


def _changed(memory: Memory, path: str, request: Body, fault: Fault, num_before: int) -> Events:
    """Return the answer with the fault."""
    asked = fault.ask(request)
    status, content = memory.ask(path, asked)
    if status != httpx.codes.OK:
        return []
    return fault.change(request, copy.deepcopy(events_of(content)), num_before)


def events_of(content: bytes) -> Events:
    """Read a whole answer, or the events of a stream."""
    if not content.startswith(b"data:"):
        return [json.loads(content)]
    data = (line.removeprefix(b"data:").strip() for line in content.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(each) for each in data if each != b"[DONE]"]


def comparable(events: Events) -> str:
    """Return an answer without what is random in it."""
    texts = [{name: value for name, value in event.items() if name not in _RANDOM} for event in events]
    for event in texts:
        for choice in event.get("choices") or ():
            part = choice.get("delta") or choice.get("message") or choice
            for call in part.get("tool_calls") or ():
                call.pop("id", None)
    return json.dumps(texts)


def _question(request: Body) -> str:
    """Name a question, however it is asked."""
    known = {name: request[name] for name in _IDENTITY if name in request}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _num_events(line: bytes) -> int:
    """Return how many events or tokens a line of an answer stands for."""
    if line.startswith(b"{"):
        return int((json.loads(line).get("usage") or {}).get("completion_tokens", 0))
    return line.startswith(b"data: {")
