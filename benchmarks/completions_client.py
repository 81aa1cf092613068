"""A thin client of ``/v1/completions``, so that little of what is measured is the client."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection

from pipelines.client import CompletionRequest, Generation
from pipelines.errors import VerificationError
from pipelines.openai_stream import AnswerReader, Choice, UnreadableError


class CompletionsClient:
    """Streams completions over one connection, which stays open.

    Args:
        host: Host of the front door.
        port: Its port.
        timeout_s: Longest wait for a chunk.
    """

    def __init__(self, host: str, port: int, timeout_s: float = 600.0) -> None:
        self._connection = HTTPConnection(host, port, timeout=timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def generate(self, request: CompletionRequest) -> Generation:
        """Send a request and read its events; tokens are counted, but their ids are not asked for.

        Raises:
            VerificationError: The response is no complete stream.
        """
        body = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        sent_at_s = time.monotonic()
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
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
                        arrivals_s.append(time.monotonic())
                        choice.add(delta)
            list(reader.end())
        except UnreadableError as error:
            raise _no_answer(str(error)) from None
        if not choice.finish_reason or not num_tokens:
            raise _no_answer(f"finish_reason={choice.finish_reason!r}, {num_tokens} tokens")
        return Generation(
            text=choice.text(),
            output_ids=(0,) * num_tokens,
            accepted_mask=(),
            finish_reason=choice.finish_reason,
            num_rounds=0,
            total_draft_tokens=0,
            total_accepted_draft_tokens=0,
            accepted_per_position=(),
            ttft_s=arrivals_s[0] - sent_at_s,
            e2e_latency_s=arrivals_s[-1] - sent_at_s,
        )


def _no_answer(why: str) -> VerificationError:
    return VerificationError(f"the front door did not answer a request: {why}", "read the server's log")
