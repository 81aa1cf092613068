"""Writes one line of JSON for each request, without prompts and answers unless the operator asks for them."""

from __future__ import annotations

import logging.handlers
from datetime import datetime, timezone
from typing import Any

from pydantic_core import to_json

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import ServerStartError
from pipelines.front_door.observing.exchange import Answer, Exchange
from pipelines.front_door.served_model import ServedModel

_NS = 1e-9


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
                "the log of requests cannot be written",
                values=f"request_log={settings.request_log}: {error.strerror}",
                limit="a file in a folder that exists and may be written",
                remedy="create the folder, or name another file",
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def observe(self, exchange: Exchange) -> None:
        """Write the line of a request that has ended."""
        first_s = [answer.arrivals[0].at_s for answer in exchange.answers if answer.arrivals]
        document = {
            "time": datetime.fromtimestamp(exchange.began_unix_ns * _NS, timezone.utc).isoformat(),
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
