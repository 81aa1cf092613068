"""Triton's model repository API: models come and go while the server answers.

Readiness there is what Triton says. A model whose process was killed still counts as ready: only its socket
tells, and only unloading and loading brings it back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

import httpx

from pipelines.errors import CanaryError, RequestTimeoutError, ServerUnavailableError

LOAD_TIMEOUT_S = 1800.0  # engines of TensorRT-LLM, as pipelines/deploy/launch.py waits
UNLOAD_TIMEOUT_S = 120.0  # Triton waits for the requests in work, which end by their own deadlines
ANSWER_TIMEOUT_S = 10.0  # what needs no work; Triton answers while models come and go
_POLL_S = 0.05
_LONGEST_REASON = 500  # characters of what Triton says


@dataclass(frozen=True)
class ModelState:
    """One version of a model.

    Attributes:
        name: Of the model.
        version: "" for a folder that was never loaded.
        state: ``READY``, ``LOADING``, ``UNLOADING``, ``UNAVAILABLE``, or "".
        reason: Why it is not ready, "" if Triton does not say.
    """

    name: str
    version: str
    state: str
    reason: str


class RepositoryApi:
    """Loads and unloads models of one server; as a context manager it closes its connections.

    Args:
        http_endpoint: ``http://host:port``.
        transport: What carries the requests; None for the network.
    """

    def __init__(self, http_endpoint: str, transport: httpx.BaseTransport | None = None) -> None:
        self._url = http_endpoint.rstrip("/")
        self._http = httpx.Client(base_url=self._url, trust_env=False, transport=transport)

    def load(self, model: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load a model, and wait until it is ready.

        One that is ready stays as it is: Triton itself would start it anew, for a moment twice.

        Raises:
            CanaryError: It cannot be loaded.
            RequestTimeoutError: It takes too long; it may be ready later.
            ServerUnavailableError: No server answers.
        """
        self._wait_while(model, ("LOADING",), "load", timeout_s)  # of somebody who did not wait
        if not self.is_ready(model):
            self._control(model, "load", timeout_s)

    def unload(self, model: str, timeout_s: float = UNLOAD_TIMEOUT_S) -> None:
        """Unload a model, and wait until its processes are gone; one that is not loaded is no error.

        Raises:
            CanaryError: Triton refuses.
            RequestTimeoutError: It takes too long; it goes on.
            ServerUnavailableError: No server answers.
        """
        self._control(model, "unload", timeout_s)
        self._wait_while(model, ("READY", "UNLOADING"), "unload", timeout_s)

    def reload(self, model: str) -> None:
        """Bring a model back whose process has died.

        Raises:
            DraftproofError: As ``unload`` and ``load``.
        """
        self.unload(model)
        self.load(model)

    def index(self) -> tuple[ModelState, ...]:
        """Every model of the repository.

        Raises:
            RequestTimeoutError: It takes too long.
            ServerUnavailableError: No server answers, or not as Triton does.
        """
        reply = self._send("POST", "/v2/repository/index", ANSWER_TIMEOUT_S)
        try:
            reply.raise_for_status()
            return tuple(
                ModelState(
                    str(each["name"]),
                    str(each.get("version", "")),
                    str(each.get("state", "")),
                    str(each.get("reason", "")),
                )
                for each in reply.json()
            )
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerUnavailableError(
                "the server does not say which models it has",
                values=f"{self._url}: {error!r}",
                limit="Triton's model repository API",
                remedy="give the address of the HTTP port of a server of 'make serve'",
            ) from None

    def is_ready(self, model: str) -> bool:
        """Whether Triton says that a model is ready.

        Raises:
            RequestTimeoutError: It takes too long.
            ServerUnavailableError: No server answers.
        """
        return self._send("GET", f"/v2/models/{model}/ready", ANSWER_TIMEOUT_S).status_code == httpx.codes.OK

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> RepositoryApi:
        """The API itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _wait_while(self, model: str, states: tuple[str, ...], action: str, timeout_s: float) -> None:
        ends_at_s = time.monotonic() + timeout_s
        while any(each.name == model and each.state in states for each in self.index()):
            if time.monotonic() > ends_at_s:
                raise _too_slow(f"{action} {model}", timeout_s)
            time.sleep(_POLL_S)

    def _control(self, model: str, action: str, timeout_s: float) -> None:
        reply = self._send("POST", f"/v2/repository/models/{model}/{action}", timeout_s)
        if reply.status_code != httpx.codes.OK:
            raise CanaryError(
                f"a model could not be {action}ed",
                values=f"{model}: {_reason(reply)}",
                limit=f"the repository of a server that runs in explicit mode, {self._url}",
                remedy="read the server's log; what serves was left as it was",
            )

    def _send(self, method: str, path: str, timeout_s: float) -> httpx.Response:
        limits = httpx.Timeout(ANSWER_TIMEOUT_S, read=timeout_s)
        try:
            return self._http.request(method, path, json={} if method == "POST" else None, timeout=limits)
        except httpx.ReadTimeout:
            raise _too_slow(f"{method} {self._url}{path}", timeout_s) from None
        except httpx.HTTPError as error:
            raise ServerUnavailableError(
                "no server answers",
                values=f"{self._url}{path}: {error!r}",
                limit="a Triton server that is ready",
                remedy="start it with 'make serve'",
            ) from None


def _reason(reply: httpx.Response) -> str:
    """What Triton says, in a line."""
    try:
        text = str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = reply.text
    return f"HTTP {reply.status_code}, {' '.join(text.split())[:_LONGEST_REASON]}"


def _too_slow(what: str, timeout_s: float) -> RequestTimeoutError:
    return RequestTimeoutError(
        "the server is not done in time",
        values=what,
        limit=f"{timeout_s:g} s",
        remedy="read its log; it goes on with it, and the same may be asked again",
    )
