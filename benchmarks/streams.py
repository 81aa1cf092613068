"""Read streamed answers of OpenAI's API with so little work that the times are the server's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from pipelines.errors import VerificationError
from pipelines.openai_stream import AnswerReader, Choice, Event, UnreadableError

TIMEOUT_S = 900.0  # for a chunk of an answer: a long prompt takes minutes


@dataclass(frozen=True)
class Streamed:
    """A streamed answer.

    Attributes:
        text: Its text.
        finish_reason: Why it ended.
        num_tokens: Its tokens.
        num_prompt_tokens: Tokens of the prompt.
        num_cached: Those of them that were not computed.
        first_s: Seconds until the first chunk with text.
        decode_s: Seconds from it to the last one.
    """

    text: str
    finish_reason: str
    num_tokens: int
    num_prompt_tokens: int
    num_cached: int
    first_s: float
    decode_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first one, per second: the prompt does not count."""
        return (self.num_tokens - 1) / self.decode_s


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
    choice, counts, arrivals_s, reader = Choice(), Event(), list[float](), AnswerReader(is_stream=True)
    try:
        while data := response.read1():
            for event in reader.read(data):
                if event.error:
                    raise _no_answer(event.error)
                counts = event if event.num_tokens else counts
                for delta in event.deltas:
                    choice.add(delta)
                    if delta.text:
                        arrivals_s.append(time.monotonic())
        list(reader.end())
    except UnreadableError as error:
        raise _no_answer(str(error)) from None
    if not choice.finish_reason or not counts.num_tokens or not arrivals_s:
        raise _no_answer(f"finish_reason={choice.finish_reason!r}, {counts.num_tokens} tokens")
    return Streamed(
        choice.text(),
        choice.finish_reason,
        counts.num_tokens,
        counts.num_prompt_tokens or 0,
        counts.num_cached or 0,
        arrivals_s[0] - sent_at_s,
        arrivals_s[-1] - arrivals_s[0],
    )


def _no_answer(why: str) -> VerificationError:
    return VerificationError(f"the front door did not answer a request: {why}", "read the server's log")
