"""Tests of a rollout's calls to Triton's repository API, and of how it finds the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pipelines.canary.controller import repository_api, triton_world
from pipelines.canary.controller.repository_api import ModelState, RepositoryApi
from pipelines.canary.controller.triton_world import ServerAddress
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.place import KEY_FILE
from pipelines.errors import CanaryError, DraftproofError, RequestTimeoutError, ServerUnavailableError


def api_of(handler: Callable[[httpx.Request], httpx.Response]) -> RepositoryApi:
    return RepositoryApi("http://127.0.0.1:8000", "key", httpx.MockTransport(handler))


class Triton:
    """A Triton whose only model enters its next state with each list of models; "" is being restarted."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["draftproof-key"] == "key"
        self.asked.append(request.url.path.rpartition("/")[2])
        state = self.states[0]
        if self.asked[-1] == "index":
            if len(self.states) > 1:
                self.states.pop(0)
            if not state:
                return httpx.Response(503)
            never = {"name": "never"}
            return httpx.Response(200, json=[never, {"name": "pair", "version": "1", "state": state}])
        if self.asked[-1] == "ready":
            return httpx.Response(200 if state == "READY" else 400)
        return httpx.Response(200)


@pytest.mark.parametrize(
    ("states", "asked"),
    [
        (("READY",), ["index", "ready"]),
        (("LOADING", "LOADING", "READY"), ["index", "index", "index", "ready"]),
        (("UNAVAILABLE",), ["index", "ready", "load"]),
    ],
)
def test_a_model_is_loaded_once_whoever_began(states: tuple[str, ...], asked: list[str]) -> None:
    triton = Triton(*states)
    api_of(triton).load("pair")
    assert triton.asked == asked


def test_unloading_waits_until_it_is_over_or_too_late() -> None:
    triton = Triton("READY", "UNLOADING", "UNLOADING", "", "UNAVAILABLE")
    api_of(triton).unload("pair")
    assert triton.asked == ["unload", *["index"] * 5]
    assert api_of(triton).index() == (ModelState("never", ""), ModelState("pair", "UNAVAILABLE"))
    with pytest.raises(RequestTimeoutError, match=r"did not finish in time; unload pair; 0 s; .*repeated"):
        api_of(Triton("UNLOADING")).unload("pair", timeout_s=0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(404, text="Not Found"), None),
        (httpx.Response(200, text="<html>"), None),
        (httpx.Response(200, json=[1]), None),
        (httpx.Response(400, json={"error": "load failed\nat line 2"}), "HTTP 400, load failed at line 2;"),
        (httpx.Response(503, json=["no"]), 'HTTP 503, \\["no"\\];'),
        (httpx.Response(400, json={"error": "x" * 9999}), "HTTP 400, x{500};"),
    ],
)
def test_what_triton_refuses_is_quoted_in_a_line(answer: httpx.Response, said: str | None) -> None:
    if said is None:
        with pytest.raises(ServerUnavailableError, match="the server did not list its models"):
            api_of(lambda request: answer).index()
        return
    triton = Triton("UNAVAILABLE")
    with pytest.raises(CanaryError, match=f"could not load a model; pair: {said}"):
        api_of(lambda asked: answer if asked.url.path.endswith("/load") else triton(asked)).load("pair")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (httpx.ConnectError("refused"), ServerUnavailableError),
        (httpx.ReadTimeout("slow"), RequestTimeoutError),
    ],
)
def test_failures_of_the_network_have_four_parts(
    failure: httpx.HTTPError, expected: type[DraftproofError]
) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise failure

    for ask in (lambda api: api.load("pair"), lambda api: api.unload("pair"), lambda api: api.index()):
        with pytest.raises(expected) as caught:
            ask(api_of(fail))
        assert all((caught.value.values, caught.value.limit, caught.value.remedy))


def test_a_model_is_asked_or_says_why_not() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        is_known = request.url.path == "/v2/models/pair/generate"
        return httpx.Response(200, json=body) if is_known else httpx.Response(400, json={"error": "unknown"})

    assert api_of(handler).generate("pair", {"input_ids": (1, 2)}, 5.0) == {"input_ids": [1, 2]}
    with pytest.raises(CanaryError, match="did not answer; other: HTTP 400, unknown"):
        api_of(handler).generate("other", {}, 5.0)


def test_a_load_may_take_longer_than_an_answer() -> None:
    limits = {}

    def handler(request: httpx.Request) -> httpx.Response:
        limits[request.url.path.rpartition("/")[2]] = request.extensions["timeout"]["read"]
        return httpx.Response(200, json=[]) if "index" in request.url.path else httpx.Response(400)

    with pytest.raises(CanaryError):
        api_of(handler).load("pair", timeout_s=300)
    answer_s = repository_api.ANSWER_TIMEOUT_S
    assert limits == {"index": answer_s, "ready": answer_s, "load": 300}


def test_a_server_in_a_container_is_waited_for_with_the_key_of_its_latest_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def start_again() -> None:
        (tmp_path / KEY_FILE).write_text(f"key {len(asked)}\n")

    class Api:
        def __init__(self, url: str, key: str) -> None:
            assert key == f"key {len(asked)}"
            asked.append(url)

        def index(self) -> None:
            start_again()
            if len(asked) < 3:
                raise ServerUnavailableError("no server answers")

        def close(self) -> None:
            pass

    start_again()
    monkeypatch.setattr(triton_world, "RepositoryApi", Api)
    monkeypatch.setattr(triton_world, "_POLL_S", 0.0)
    monkeypatch.setenv("DRAFTPROOF_METRICS_PORT", "18999")
    address = ServerAddress.of(tmp_path, "draftproof-demo")
    assert asked == ["http://draftproof-demo:8000"] * 3
    assert (address.key, address.metrics) == ("key 2", "http://draftproof-demo:18999/metrics")


@pytest.mark.parametrize(
    ("host", "said"), [("", "no server of this recipe"), ("127.0.0.1", "no server answers")]
)
def test_without_a_server_nothing_begins(
    host: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / KEY_FILE).write_text("key\n")
    monkeypatch.setenv("DRAFTPROOF_HTTP_PORT", str(Ports.free().http))
    monkeypatch.setattr(Launch, "ready_timeout_s", 0.0)
    with pytest.raises(ServerUnavailableError, match=said):
        ServerAddress.of(tmp_path, host)
