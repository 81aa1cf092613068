"""Tests of OpenAI's API behind the HAProxy that deployments render."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import openai
import pytest

from pipelines.deploy.server import Server
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL
from tests.support.haproxy import HAPROXY, IS_MISSING, Proxy, proxies

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(HAPROXY is None, reason=IS_MISSING),
    pytest.mark.xdist_group("front door"),
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Proxy]]:
    with proxies(tmp_path_factory.mktemp("haproxy")) as begin:
        yield begin


@pytest.fixture(scope="module")
def client(door: Server, start: Callable[..., Proxy]) -> Iterator[httpx.Client]:
    with through(start(door.ports)) as connected:
        assert wait_until(lambda: connected.get("/health").status_code == 200)
        yield connected


def through(proxy: Proxy) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{proxy.ports.openai}", timeout=120, trust_env=False)


def test_openai_s_client_works_through_it(client: httpx.Client) -> None:
    with openai.OpenAI(base_url=str(client.base_url.join("/v1")), api_key="none", max_retries=0) as api:
        options = {"model": MODEL, "prompt": "def f(", "max_tokens": 16, "seed": 3}
        whole = api.completions.create(**options)
        stream = api.completions.create(**options, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        assert api.models.list().data[0].id == MODEL


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/health"])
def test_what_is_read_passes(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/metrics", {}, 404),
        ("GET", "/v2/health/ready", {}, 404),
        ("POST", "/v1/files", {"json": {}}, 404),
        ("GET", "/v1/completions", {}, 405),
        ("POST", "/v1/models", {"json": {}}, 405),
        ("GET", "/v1/responses/resp_1", {}, 404),
        ("DELETE", "/v1/responses/resp_1", {}, 404),
        ("PUT", "/v1/responses/resp_1", {"json": {}}, 405),
        ("POST", "/tokenize", {"content": b"{}", "headers": {"Content-Encoding": "gzip"}}, 400),
        ("POST", "/tokenize", {"content": b"{}", "headers": {"Content-Encoding": "br"}}, 415),
        ("POST", "/tokenize", {"content": iter([b"{}"])}, 411),
        ("POST", "/tokenize", {"content": b" " * (2097152 + 1)}, 413),
        ("POST", "/tokenize", {"json": {"prompt": 1}}, 400),
        ("POST", "/tokenize", {"json": {"prompt": "a"}, "headers": {"Origin": "https://evil.example"}}, 403),
    ],
)
def test_all_else_gets_openai_s_error(
    client: httpx.Client, method: str, path: str, options: dict[str, object], status: int
) -> None:
    refused = client.request(method, path, **options)  # type: ignore[arg-type]
    assert refused.status_code == status, refused.text
    error = refused.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert (status == 405) == ("Allow" in refused.headers)


def test_a_drain_finishes_streams_and_new_requests_are_told_to_come_back(
    new_door: Callable[..., AbstractContextManager[Server]], start: Callable[..., Proxy]
) -> None:
    body = {"prompt": "def f(", "max_tokens": 480, "n": 3, "ignore_eos": True, "stream": True, "logprobs": 20}
    with new_door() as server, through(start(server.ports)) as client:
        client.headers["Connection"] = "close"  # HAProxy ends a kept one when the server ends its own
        assert wait_until(lambda: client.get("/health").status_code == 200)
        with client.stream("POST", "/v1/completions", json=body) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            os.kill(server.process.pid, signal.SIGTERM)
            assert wait_until(lambda: "retry later" in client.get("/v1/models").text, timeout_s=120)
            refused = client.post("/v1/completions", json={"prompt": "a"})
            rest = [line for line in lines if line]
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json()["error"]["code"] == "unavailable"
        assert rest[-1] == "data: [DONE]"
