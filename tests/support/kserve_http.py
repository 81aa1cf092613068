"""A client of Triton's HTTP endpoints ``generate`` and ``generate_stream`` (server-sent events).

Ours speaks gRPC alone. This one shows that clients of others are served as well, over the other protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from pipelines.client import Client, GenerationStream
from pipelines.client.connection import Timeouts
from pipelines.client.refusals import refusal, unreachable
from pipelines.client.tensors import chunk_from_outputs, inputs_of
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import KEY_HEADER, CompletionRequest

_EVENT_PREFIX = "data:"


def connect(url: str, timeouts: Timeouts | None = None, key: str = "") -> HttpClient:
    """Return a client of the server at ``http://host:port``."""
    return HttpClient(url, timeouts or Timeouts(), key)


class HttpClient(Client):
    """A client of one server, for any number of concurrent calls."""

    def __init__(self, url: str, timeouts: Timeouts, key: str = "") -> None:
        self._address = url
        self._timeouts = timeouts
        self._http = httpx.Client(
            base_url=url,
            trust_env=False,  # the server is near
            verify=False,  # there is no TLS here, and certificates take long to load
            timeout=httpx.Timeout(timeouts.total_s, connect=timeouts.connect_s),
            headers={KEY_HEADER: key} if key else {},
        )

    def is_ready(self) -> bool:
        try:
            return self._http.get("/v2/health/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        self._http.close()

    def _start(self, request: CompletionRequest, model: str, *, streaming: bool) -> HttpStream:
        """Send a request and wait for the first response, before which Triton sends no headers."""
        endpoint = "generate_stream" if streaming else "generate"
        body = generate_body(request, self._timeouts, streaming=streaming)
        message = self._http.build_request("POST", f"/v2/models/{model}/{endpoint}", json=body)
        sent_at_s = time.monotonic()
        try:
            return HttpStream(self._http.send(message, stream=True), sent_at_s, streaming=streaming)
        except httpx.HTTPError as error:
            raise unreachable(self._address, repr(error)) from error


class HttpStream(GenerationStream):
    """One answer, which is whole or streamed as events."""

    def __init__(self, response: httpx.Response, sent_at_s: float, *, streaming: bool) -> None:
        self._response = response
        self._bodies = _events(response) if streaming else _whole(response)
        self._sent_at_s, self._streamed = sent_at_s, streaming
        self._chunks = []
        self._is_finished = False

    def close(self) -> None:
        """Close the connection, which cancels the request unless the whole answer was read."""
        self._response.close()

    def _receive(self) -> Chunk | None:
        url = str(self._response.url)
        try:
            body = next(self._bodies, None)
        except httpx.HTTPError as error:
            raise unreachable(url, repr(error)) from error
        if body is None:
            if self._is_finished:
                return None
            raise unreachable(url, "the stream ended before the last response")
        document = json.loads(body)
        if "error" in document:
            raise refusal(str(document["error"]))
        outputs = {name: value if isinstance(value, list) else [value] for name, value in document.items()}
        chunk = chunk_from_outputs(outputs, time.monotonic())
        self._is_finished = bool(chunk.finish_reason)
        return chunk


def generate_body(request: CompletionRequest, timeouts: Timeouts, *, streaming: bool) -> dict[str, Any]:
    """Build the body for ``generate`` or ``generate_stream``."""
    inputs = inputs_of(request, streaming=streaming)
    body = {each.name: list(each.values) if each.is_list else each.values[0] for each in inputs}
    return {**body, "timeout": timeouts.total_us}


def _whole(response: httpx.Response) -> Iterator[str]:
    yield response.read().decode("utf-8")


def _events(response: httpx.Response) -> Iterator[str]:
    """Yield the data of events; httpx splits lines at U+2028 and others too, which texts contain."""
    pending = b""
    for data in response.iter_bytes():
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line:
                yield line.decode("utf-8").removeprefix(_EVENT_PREFIX)
    if pending:  # a stream that is refused before it begins has an object instead
        yield pending.decode("utf-8").removeprefix(_EVENT_PREFIX)
