"""Client of what only operators may do: load and unload models while the server runs, and ask any of them.

Triton reports a model as ready even if its process was killed. Only the model's socket shows that, and only
unloading and loading it again restores it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from pipelines.errors import CanaryError, RequestTimeoutError, ServerUnavailableError

LOAD_TIMEOUT_S = 1800.0  # for TensorRT-LLM engines; the same as in pipelines/deploy/triton/launch.py
UNLOAD_TIMEOUT_S = 120.0  # Triton waits for running requests, which end by their own deadlines
ANSWER_TIMEOUT_S = 10.0  # for calls that Triton answers immediately, even while it loads models
_POLL_S = 0.05
_LONGEST_REASON = 500  # characters of Triton's message


class ModelState(NamedTuple):
    """A model of the repository; its state is "" if it was never loaded."""

    name: str
    state: str


class RepositoryApi:
    """Loads, unloads and asks models of one server.

    Args:
        http_endpoint: ``http://host:port``.
        key: Key of the server, which this API requires.
        transport: Transport of httpx; None for the network.
    """

    def __init__(self, http_endpoint: str, key: str, transport: httpx.BaseTransport | None = None) -> None:
        self._url = http_endpoint.rstrip("/")
        self._http = httpx.Client(
            base_url=self._url, trust_env=False, transport=transport, headers={"draftproof-key": key}
        )

    def load(self, model: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load a model and wait until it is ready.

        Does nothing if it is ready: Triton would start a second copy and then stop the first.

        Raises:
            CanaryError: Triton could not load it.
            RequestTimeoutError: It was not ready in time; it may be later.
            ServerUnavailableError: No server answers.
        """
        self._wait_while(model, ("LOADING",), "load", timeout_s)  # another client may have started it
        if not self.is_ready(model):
            self._control(model, "load", timeout_s)

    def unload(self, model: str, timeout_s: float = UNLOAD_TIMEOUT_S) -> None:
        """Unload a model if it is loaded, and wait until its processes have ended.

        Raises:
            CanaryError: Triton refused.
            RequestTimeoutError: It was not unloaded in time; Triton continues to unload it.
            ServerUnavailableError: No server answers.
        """
        self._control(model, "unload", timeout_s)
        self._wait_while(model, ("READY", "UNLOADING"), "unload", timeout_s)

    def generate(self, model: str, inputs: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Ask a model, and return the outputs of its only response; one value stands without a list.

        Raises:
            CanaryError: The model refused or failed.
            RequestTimeoutError: It did not answer in time.
            ServerUnavailableError: No server answers.
        """
        reply = self._send("POST", f"/v2/models/{model}/generate", timeout_s, inputs)
        if reply.status_code != httpx.codes.OK:
            raise CanaryError(
                "a model did not answer",
                values=f"{model}: {_reason(reply)}",
                limit="a model that is loaded",
                remedy="read the server's log",
            )
        outputs: dict[str, Any] = reply.json()
        return outputs

    def index(self) -> tuple[ModelState, ...]:
        """List every model of the repository.

        Raises:
            RequestTimeoutError: The server did not answer in time.
            ServerUnavailableError: No server answers, or its answer is not Triton's.
        """
        return self._listed(self._ask_for_index())

    def _ask_for_index(self) -> httpx.Response:
        return self._send("POST", "/v2/repository/index", ANSWER_TIMEOUT_S)

    def _listed(self, reply: httpx.Response) -> tuple[ModelState, ...]:
        try:
            reply.raise_for_status()
            return tuple(ModelState(str(each["name"]), str(each.get("state", ""))) for each in reply.json())
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerUnavailableError(
                "the server did not list its models",
                values=f"{self._url}: {error!r}",
                limit="Triton's model repository API",
                remedy="give the address of the HTTP port of a server of 'draftproof serve'",
            ) from None

    def is_ready(self, model: str) -> bool:
        """Return whether Triton reports a model as ready.

        Raises:
            RequestTimeoutError: The server did not answer in time.
            ServerUnavailableError: No server answers.
        """
        return self._send("GET", f"/v2/models/{model}/ready", ANSWER_TIMEOUT_S).status_code == httpx.codes.OK

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _wait_while(self, model: str, states: tuple[str, ...], action: str, timeout_s: float) -> None:
        ends_at_s = time.monotonic() + timeout_s
        while self._may_be(model, states):
            if time.monotonic() > ends_at_s:
                raise _too_slow(f"{action} {model}", timeout_s)
            time.sleep(_POLL_S)

    def _may_be(self, model: str, states: tuple[str, ...]) -> bool:
        """Return whether a model is in one of these states, or Triton is being restarted and cannot tell.

        The gateway restarts a Triton that cannot unload a model whose process was killed.
        """
        reply = self._ask_for_index()
        if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return True
        return any(each.name == model and each.state in states for each in self._listed(reply))

    def _control(self, model: str, action: str, timeout_s: float) -> None:
        reply = self._send("POST", f"/v2/repository/models/{model}/{action}", timeout_s)
        if reply.status_code != httpx.codes.OK:
            raise CanaryError(
                f"Triton could not {action} a model",
                values=f"{model}: {_reason(reply)}",
                limit=f"a model of the repository of {self._url}, which runs in explicit mode",
                remedy="read the server's log; the pair in service was not changed",
            )

    def _send(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        limits = httpx.Timeout(ANSWER_TIMEOUT_S, read=timeout_s)
        content = body or {} if method == "POST" else None
        try:
            return self._http.request(method, path, json=content, timeout=limits)
        except httpx.ReadTimeout:
            raise _too_slow(f"{method} {self._url}{path}", timeout_s) from None
        except httpx.HTTPError as error:
            raise ServerUnavailableError(
                "no server answers",
                values=f"{self._url}{path}: {error!r}",
                limit="a Triton server that is ready",
                remedy="start it with 'draftproof serve'",
            ) from None


def _reason(reply: httpx.Response) -> str:
    """Return Triton's message as one line."""
    try:
        text = str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = reply.text
    return f"HTTP {reply.status_code}, {' '.join(text.split())[:_LONGEST_REASON]}"


def _too_slow(what: str, timeout_s: float) -> RequestTimeoutError:
    return RequestTimeoutError(
        "the server did not finish in time",
        values=what,
        limit=f"{timeout_s:g} s",
        remedy="read its log; it continues, and the call can be repeated",
    )
