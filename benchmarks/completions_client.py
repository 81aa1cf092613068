"""A thin client of ``/v1/completions``, so that little of what is measured is the client."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from typing import Any

from pipelines.client import CompletionRequest, Generation
from pipelines.errors import VerificationError


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
        body = json.dumps(
            {
                "prompt": request.prompt,
                "max_tokens": request.max_tokens,
                "temperature": request.temperature,
                "seed": request.seed,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        sent_at_s = time.monotonic()
        self._connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise _incomplete(f"HTTP status {response.status}: {response.read()[:500]!r}")
        texts: list[str] = []
        arrivals_s: list[float] = []
        finish_reason, num_tokens = "", 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line[len(b"data: ") :])
            if "error" in event:
                raise _incomplete(str(event["error"]))
            for choice in event["choices"]:
                arrivals_s.append(time.monotonic())
                texts.append(choice["text"])
                finish_reason = choice["finish_reason"] or ""
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
        response.read()  # the end of the body, after which the connection can be used again
        if not finish_reason or not num_tokens:
            raise _incomplete(f"finish_reason={finish_reason!r}, {num_tokens} tokens")
        return Generation(
            text="".join(texts),
            output_ids=(0,) * num_tokens,
            accepted_mask=(),
            finish_reason=finish_reason,
            num_rounds=0,
            total_draft_tokens=0,
            total_accepted_draft_tokens=0,
            accepted_per_position=(),
            ttft_s=arrivals_s[0] - sent_at_s,
            e2e_latency_s=arrivals_s[-1] - sent_at_s,
        )


def _incomplete(values: str) -> VerificationError:
    return VerificationError(
        f"the front door did not answer with a stream of events that ends: {values}", "read the server's log"
    )
