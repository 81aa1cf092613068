"""A client of Triton's HTTP endpoints ``generate`` and ``generate_stream`` (server-sent events).

Ours speaks gRPC alone. This one shows that clients of others are served as well, over the other protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from pipelines.client import Client
from pipelines.client.connection import KEY_HEADER, Timeouts
from pipelines.client.generation import Chunk, chunk_from_outputs
from pipelines.client.refusals import refusal, timed_out, unreachable
from pipelines.errors import DraftproofError
from pipelines.wire.request import CompletionRequest

_EVENT_PREFIX = "data:"


def connect(url: str, timeouts: Timeouts | None = None, key: str = "") -> Client:
    """Return a client of the server at ``http://host:port``."""
    return Client(url, HttpTransport(url.removeprefix("http://"), timeouts or Timeouts(), key))


class HttpTransport:
    """Connections to one server, for any number of concurrent calls.

    Args:
        address: ``host:port``.
        timeouts: Timeouts of every call.
        key: Key of the server, for operators.
    """

    def __init__(self, address: str, timeouts: Timeouts, key: str = "") -> None:
        self._url = f"http://{address}"
        self._timeouts = timeouts
        # Ignore proxies of the environment: the server is near, often on this machine.
        self._http = httpx.Client(
            base_url=self._url,
            trust_env=False,
            verify=False,  # there is no TLS here, and certificates take long to load
            timeout=self._limits(timeouts.read_s),
            headers={KEY_HEADER: key} if key else {},
        )

    def start(self, request: CompletionRequest, model: str, *, streaming: bool) -> HttpCall:
        """Send a request and wait for the first response, before which Triton sends no headers.

        Raises:
            DraftproofError: The request cannot be sent, or was refused.
        """
        body = generate_body(request, self._timeouts, streaming=streaming)
        sent_at_s = time.monotonic()
        total_s = self._timeouts.total_s
        endpoint = "generate_stream" if streaming else "generate"
        message = self._http.build_request(
            "POST", f"/v2/models/{model}/{endpoint}", json=body, timeout=self._limits(total_s)
        )
        try:
            response = self._http.send(message, stream=True)
            if response.status_code != httpx.codes.OK:
                response.read()
                response.close()
        except httpx.HTTPError as error:
            raise as_error(error, self._url, self._timeouts, total_s) from error
        # httpcore looks up the limit again when it begins to read the body.
        message.extensions["timeout"]["read"] = min(self._timeouts.read_s, total_s) if streaming else total_s
        if response.status_code != httpx.codes.OK:
            raise refusal_of(response)
        return HttpCall(response, self._timeouts, sent_at_s, streaming=streaming)

    def is_ready(self) -> bool:
        """Return whether the server is ready; False if nothing answers."""
        try:
            reply = self._http.get("/v2/health/ready", timeout=self._limits(self._timeouts.connect_s))
        except httpx.HTTPError:
            return False
        return reply.status_code == httpx.codes.OK

    def server_version(self) -> str:
        """Return the version of Triton."""
        return str(self._ask("/v2")["version"])

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """Return the ``parameters`` of a model's config.pbtxt."""
        parameters = self._ask(f"/v2/models/{model}/config").get("parameters", {})
        return {name: str(value["string_value"]) for name, value in parameters.items()}

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _ask(self, path: str) -> Any:
        try:
            reply = self._http.get(path)
        except httpx.HTTPError as error:
            raise as_error(error, self._url, self._timeouts, self._timeouts.read_s) from error
        if reply.status_code != httpx.codes.OK:
            raise refusal_of(reply)
        return reply.json()

    def _limits(self, silence_s: float) -> httpx.Timeout:
        limits = self._timeouts
        return httpx.Timeout(connect=limits.connect_s, read=silence_s, write=silence_s, pool=limits.connect_s)


class HttpCall:
    """One call and its response, which is whole or streamed as events.

    Args:
        response: Response with received headers and unread body.
        timeouts: Timeouts of the call.
        sent_at_s: Time of sending on ``time.monotonic``'s clock.
        streaming: Whether the body consists of events.
    """

    def __init__(
        self, response: httpx.Response, timeouts: Timeouts, sent_at_s: float, *, streaming: bool
    ) -> None:
        self._response = response
        self._timeouts = timeouts
        self._sent_at_s = sent_at_s
        self._streaming = streaming
        self._lines = _lines(response)
        self._is_finished = False

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None after the last.

        Raises:
            DraftproofError: The server raised it, or the connection broke.
        """
        try:
            body = self._next_event() if self._streaming else self._whole_body()
        except httpx.HTTPError as error:
            raise as_error(error, str(self._response.url), self._timeouts, self._timeouts.read_s) from error
        received_at_s = time.monotonic()
        if body is None:
            if self._is_finished:
                return None
            raise unreachable(str(self._response.url), "the stream ended before the last response")
        if received_at_s - self._sent_at_s > self._timeouts.total_s:
            raise timed_out("the deadline passed", self._timeouts.total_s)
        document = _json_object(body)
        if "error" in document:
            raise refusal(str(document["error"]))
        chunk = chunk_from_outputs(
            {name: value if isinstance(value, list) else [value] for name, value in document.items()},
            received_at_s,
        )
        self._is_finished = bool(chunk.finish_reason)
        return chunk

    def close(self) -> None:
        """Close the connection, which cancels the request unless the whole answer was read."""
        self._response.close()

    def _whole_body(self) -> str | None:
        return None if self._response.is_stream_consumed else self._response.read().decode("utf-8")

    def _next_event(self) -> str | None:
        for line in self._lines:
            if line.startswith(_EVENT_PREFIX):
                return line.removeprefix(_EVENT_PREFIX)
        return None


def generate_body(request: CompletionRequest, timeouts: Timeouts, *, streaming: bool) -> dict[str, Any]:
    """Build the body for ``generate`` or ``generate_stream``.

    Raises:
        InvalidRequestError: The request cannot be sent.
    """
    values = request.values(streaming=streaming)
    body = {tensor.name: list(each) if tensor.is_list else each[0] for tensor, each in values}
    # The gateway cancels a request whose client disconnects; the deadline ends what goes unnoticed.
    body["timeout"] = timeouts.total_us
    return body


def _lines(response: httpx.Response) -> Iterator[str]:
    """Yield lines that end in a line feed; httpx also splits at U+2028 and others, which texts contain."""
    pending = b""
    for data in response.iter_bytes():
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8")
    if pending:
        yield pending.decode("utf-8")


def _json_object(body: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise refusal(f"a response that is not JSON: {body[:200]!r}") from error
    if not isinstance(document, dict):
        raise refusal(f"a response that is not a JSON object: {body[:200]!r}")
    return document


def refusal_of(response: httpx.Response) -> DraftproofError:
    """Convert a response with a status other than 200 to an error."""
    try:
        # A stream that fails before it begins is refused in an event, too.
        message = str(json.loads(response.text.removeprefix(_EVENT_PREFIX))["error"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}: {response.text[:200]}"
    return refusal(message, is_client_fault=400 <= response.status_code < 500)


def as_error(error: httpx.HTTPError, url: str, timeouts: Timeouts, silence_s: float) -> DraftproofError:
    """Convert an error of httpx to one of ours; ``silence_s`` is its read timeout."""
    if isinstance(error, httpx.ReadTimeout):
        return timed_out("no response", silence_s)
    if isinstance(error, httpx.WriteTimeout):
        return timed_out("the request could not be sent", timeouts.read_s)
    return unreachable(url, f"{type(error).__name__}: {error}")
