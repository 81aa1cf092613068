"""Read streamed answers of OpenAI's API with so little work that the times are the server's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from pipelines.errors import VerificationError
from pipelines.openai_stream import AnswerReader, Choice, UnreadableError

TIMEOUT_S = 600.0  # for a chunk of an answer


@dataclass(frozen=True)
class Streamed:
    """A streamed answer.

    Attributes:
        text: Its text.
        finish_reason: Why it ended.
        num_tokens: Its tokens.
        sent_at_s: When it was asked for, in seconds of ``time.monotonic``.
        arrivals_s: When each chunk with text arrived; at least one.
    """

    text: str
    finish_reason: str
    num_tokens: int
    sent_at_s: float
    arrivals_s: tuple[float, ...]


def ask_stream(connection: HTTPConnection, path: str, body: Mapping[str, Any]) -> Streamed:
    """Send a request and read its events; the connection can be used again.

    Args:
        connection: To the server.
        path: Such as ``/v1/completions``.
        body: The request; what asks for a stream, and for the number of its tokens, is added.

    Raises:
        VerificationError: The response is no complete stream.
    """
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent_at_s = time.monotonic()
    connection.request("POST", path, json.dumps(whole), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise _no_answer(f"HTTP status {response.status}: {response.read()[:500]!r}")
    choice, num_tokens, arrivals_s, reader = Choice(), 0, list[float](), AnswerReader(is_stream=True)
    try:
        while data := response.read1():
            for event in reader.read(data):
                if event.error:
                    raise _no_answer(event.error)
                num_tokens = event.num_tokens or num_tokens
                for delta in event.deltas:
                    choice.add(delta)
                    if delta.text:
                        arrivals_s.append(time.monotonic())
        list(reader.end())
    except UnreadableError as error:
        raise _no_answer(str(error)) from None
    if not choice.finish_reason or not num_tokens or not arrivals_s:
        raise _no_answer(f"finish_reason={choice.finish_reason!r}, {num_tokens} tokens")
    return Streamed(choice.text(), choice.finish_reason, num_tokens, sent_at_s, tuple(arrivals_s))


def _no_answer(why: str) -> VerificationError:
    return VerificationError(f"the front door did not answer a request: {why}", "read the server's log")
