"""Records what happens to one request, for metrics, and writes a log of requests."""

from __future__ import annotations

import logging
import logging.handlers
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from aiohttp import web
from pydantic_core import to_json

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, ServerStartError
from pipelines.front_door.served_model import ServedModel
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")

REQUEST_ID = "X-Request-Id"

Ending = Literal["stop", "length", "abort", "error"]
"""How an answer ended, in vLLM's words: ``abort`` if the client left, ``error`` if the server failed."""


@dataclass
class Answer:
    """One answer to a request, so far.

    Attributes:
        request: What ``router`` was asked.
        num_output_tokens: Output tokens so far.
        arrived_at_s: When each chunk with tokens arrived, on ``time.monotonic``'s clock.
        last: The latest chunk; None before the first.
        texts: Text of each chunk.
    """

    request: CompletionRequest
    num_output_tokens: int = 0
    arrived_at_s: list[float] = field(default_factory=list)
    last: Chunk | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def finish_reason(self) -> str:
        """Return "stop" or "length"; "" if the answer is not complete."""
        return self.last.finish_reason if self.last else ""


@dataclass
class Exchange:
    """One request and its response.

    Attributes:
        path: Path of the endpoint as it is declared; "" for a path that does not exist.
        request_id: Id of the request: the header ``X-Request-Id``, or a random one.
        began_s: Arrival on ``time.monotonic``'s clock.
        began_unix_s: Arrival in Unix time.
        ended_s: End of the response on ``time.monotonic``'s clock.
        is_streamed: Whether the answers were sent as events.
        answers: The answers, in the order of their numbers; empty if no model was asked.
        status: HTTP status of the response; 0 if the client left before its end.
        key_name: Name of the API key; "" for none.
        has_left: Whether the client left before the end.
        error: Why the request failed; None if it did not.
    """

    path: str
    request_id: str
    began_s: float = field(default_factory=time.monotonic)
    began_unix_s: float = field(default_factory=time.time)
    ended_s: float = 0.0
    is_streamed: bool = False
    answers: list[Answer] = field(default_factory=list)
    status: int = 0
    key_name: str = ""
    has_left: bool = False
    error: DraftproofError | None = None

    @classmethod
    def of(cls, request: web.Request) -> Exchange:
        """Return the exchange that a request begins."""
        resource = request.match_info.route.resource
        given = request.headers.get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(12)
        return cls(resource.canonical if resource else "", request_id)

    def ask(self, requests: Sequence[CompletionRequest], *, streaming: bool) -> None:
        """Record what ``router`` is asked."""
        self.answers = [Answer(request) for request in requests]
        self.is_streamed = streaming

    def add(self, number: int, chunk: Chunk) -> None:
        """Record a chunk of an answer."""
        answer = self.answers[number]
        answer.last = chunk
        answer.texts.append(chunk.text)
        if chunk.output_ids:
            answer.num_output_tokens += len(chunk.output_ids)
            answer.arrived_at_s.append(chunk.received_at_s)

    def ending(self, answer: Answer) -> Ending:
        """Return how an answer ended."""
        if answer.finish_reason in ("stop", "length"):
            return "stop" if answer.finish_reason == "stop" else "length"
        return "abort" if self.has_left else "error"


EXCHANGE: web.RequestKey[Exchange] = web.RequestKey("exchange", Exchange)


class RequestLog:
    """Appends to a file, which may be renamed meanwhile, as logrotate does.

    Args:
        settings: Name the file, whose folder must exist, and say whether it gets texts.
        model: The served model.

    Raises:
        ServerStartError: The file cannot be written.
    """

    def __init__(self, settings: FrontDoorSettings, model: ServedModel) -> None:
        self._model = model
        self._has_texts = settings.log_texts
        try:
            self._file = logging.handlers.WatchedFileHandler(settings.request_log, encoding="utf-8")
        except OSError as error:
            raise ServerStartError(
                f"the log of requests {settings.request_log} cannot be written: {error.strerror}",
                "create its folder, or name another file",
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def observe(self, exchange: Exchange) -> None:
        """Write one line of JSON for a request that has ended; texts only if the operator asked for them."""
        first_s = [answer.arrived_at_s[0] for answer in exchange.answers if answer.arrived_at_s]
        document = {
            "time": datetime.fromtimestamp(exchange.began_unix_s, timezone.utc).isoformat(),
            "request_id": exchange.request_id,
            "key": exchange.key_name or None,
            "path": exchange.path or "other",
            "model": self._model.name,
            "status": exchange.status,
            "error": exchange.error.code if exchange.error else None,
            "client_left": exchange.has_left,
            "stream": exchange.is_streamed,
            "duration_s": round(exchange.ended_s - exchange.began_s, 6),
            "ttft_s": round(min(first_s) - exchange.began_s, 6) if exchange.is_streamed and first_s else None,
            "answers": [self._answer(exchange, answer) for answer in exchange.answers],
        }
        line = to_json(document).decode()
        self._file.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))

    def _answer(self, exchange: Exchange, answer: Answer) -> dict[str, Any]:
        counts = answer.last.counts if answer.last else None
        document: dict[str, Any] = {
            "finish_reason": exchange.ending(answer),
            "prompt_tokens": len(answer.request.prompt_ids),
            "output_tokens": answer.num_output_tokens,
            "draft_tokens": counts.total_draft_tokens if counts else 0,
            "accepted_draft_tokens": counts.total_accepted_draft_tokens if counts else 0,
            "seed": answer.request.seed,
            "arm": answer.last.arm if answer.last else "",
        }
        if self._has_texts:
            prompt = b"".join(map(self._model.bytes_of, answer.request.prompt_ids))
            document["prompt"] = prompt.decode(errors="replace")
            document["text"] = "".join(answer.texts)
        return document
