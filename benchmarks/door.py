"""Ask a server over OpenAI's API, and time what it streams."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from pipelines.deploy.ports import HOST
from pipelines.errors import VerificationError
from pipelines.openai_stream import AnswerReader, Choice, UnreadableError

_TIMEOUT_S = 600.0  # for a chunk of an answer


@dataclass(frozen=True)
class Streamed:
    """A streamed answer.

    Attributes:
        text: Its text.
        finish_reason: Why it ended.
        num_tokens: Its tokens, as the server counts them.
        sent_at_s: Time when the request was sent.
        arrivals_s: Time of each part of the answer; one at least.
    """

    text: str
    finish_reason: str
    num_tokens: int
    sent_at_s: float
    arrivals_s: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first one, per second: the prompt does not count."""
        return (self.num_tokens - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


class Door:
    """Streams answers over one connection, so that little of what is measured is the client."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, fields: dict[str, Any]) -> Streamed:
        """Send the fields of a completion, or of a chat if they have messages, and read the stream.

        Raises:
            VerificationError: The response is no complete stream.
        """
        path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        body = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        sent_at_s = time.monotonic()
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise _no_answer(f"HTTP status {response.status}: {response.read()[:500]!r}")
        choice, num_tokens = Choice(), 0
        arrivals_s: list[float] = []
        reader = AnswerReader(is_stream=True)
        try:
            while data := response.read1():  # to the end, after which the connection can be used again
                for event in reader.read(data):
                    if event.error:
                        raise _no_answer(event.error)
                    num_tokens = event.num_tokens or num_tokens
                    for delta in event.deltas:
                        choice.add(delta)
                        if delta.says_anything:
                            arrivals_s.append(time.monotonic())
            list(reader.end())
        except UnreadableError as error:
            raise _no_answer(str(error)) from None
        if not choice.finish_reason or not num_tokens or not arrivals_s:
            raise _no_answer(f"finish_reason={choice.finish_reason!r}, {num_tokens} tokens")
        return Streamed(choice.text(), choice.finish_reason, num_tokens, sent_at_s, tuple(arrivals_s))


def _no_answer(why: str) -> VerificationError:
    return VerificationError(f"the front door did not answer a request: {why}", "read the server's log")
