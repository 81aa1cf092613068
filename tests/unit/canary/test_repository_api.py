"""Tests of a rollout's calls to Triton's repository API, and of each possible reply."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from pipelines.canary.controller import repository_api
from pipelines.canary.controller.repository_api import ModelState, RepositoryApi
from pipelines.errors import CanaryError, DraftproofError, RequestTimeoutError, ServerUnavailableError


def api_of(handler: Callable[[httpx.Request], httpx.Response]) -> RepositoryApi:
    return RepositoryApi("http://127.0.0.1:8000", "key", httpx.MockTransport(handler))


class Triton:
    """A Triton whose only model enters its next state with each request."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path.rpartition("/")[2])
        state = self.states[0]
        if self.asked[-1] == "index":
            if len(self.states) > 1:
                self.states.pop(0)
            return httpx.Response(200, json=[{"name": "pair", "version": "1", "state": state}])
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
    triton = Triton("READY", "UNLOADING", "UNLOADING", "UNAVAILABLE")
    api_of(triton).unload("pair")
    assert triton.asked == ["unload", "index", "index", "index", "index"]
    with pytest.raises(RequestTimeoutError, match=r"did not finish in time; unload pair; 0 s; .*repeated"):
        api_of(Triton("UNLOADING")).unload("pair", timeout_s=0)


def test_the_index_has_models_that_were_never_loaded() -> None:
    answer = [{"name": "never"}, {"name": "pair", "state": "UNAVAILABLE", "reason": "unloaded"}]
    listed = api_of(lambda request: httpx.Response(200, json=answer)).index()
    assert listed == (ModelState("never", ""), ModelState("pair", "UNAVAILABLE"))


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, text="Not Found"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[1]),
    ],
)
def test_a_server_that_is_no_triton_is_an_error(answer: httpx.Response) -> None:
    with pytest.raises(ServerUnavailableError, match=r"did not list its models; http://127.0.0.1:8000: "):
        api_of(lambda request: answer).index()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(400, json={"error": "load failed\nat line 2"}), "HTTP 400, load failed at line 2;"),
        (httpx.Response(503, json=["no"]), 'HTTP 503, \\["no"\\];'),
        (httpx.Response(400, json={"error": "x" * 9999}), "HTTP 400, x{500};"),
    ],
)
def test_what_triton_refuses_is_quoted_in_a_line(answer: httpx.Response, said: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return answer if request.url.path.endswith("/load") else Triton("")(request)

    with pytest.raises(CanaryError, match=f"could not load a model; pair: {said}"):
        api_of(handler).load("pair")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (httpx.ConnectError("refused"), ServerUnavailableError),
        (httpx.ReadTimeout("slow"), RequestTimeoutError),
    ],
)
def test_every_failure_of_the_network_has_four_parts(
    failure: httpx.HTTPError, expected: type[DraftproofError]
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise failure

    api = api_of(handler)
    for ask in (
        lambda: api.load("pair"),
        lambda: api.unload("pair"),
        lambda: api.is_ready("pair"),
        api.index,
    ):
        with pytest.raises(expected) as caught:
            ask()
        assert all((caught.value.values, caught.value.limit, caught.value.remedy))


def test_a_load_may_take_longer_than_an_answer() -> None:
    limits = {}

    def handler(request: httpx.Request) -> httpx.Response:
        limits[request.url.path.rpartition("/")[2]] = request.extensions["timeout"]["read"]
        return httpx.Response(200, json=[]) if "index" in request.url.path else httpx.Response(400)

    with pytest.raises(CanaryError):
        api_of(handler).load("pair", timeout_s=300)
    answer_s = repository_api.ANSWER_TIMEOUT_S
    assert limits == {"index": answer_s, "ready": answer_s, "load": 300}
