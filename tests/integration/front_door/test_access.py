"""Tests of keys, limits, TLS and web pages on a real server."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import openai
import pytest

from pipelines.deploy.server import Server
from pipelines.front_door.access.key_file import add_key, remove_key
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL, UNREAD
from tests.integration.test_disconnects import all_blocks_are_free, is_busy
from tests.support.certificate import make_certificate

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door access")]

PATHS = [
    *(("GET", "/v1/models"), ("GET", f"/v1/models/{MODEL}"), ("GET", "/v1/nothing")),
    *(("POST", path) for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")),
]
BODY = {"prompt": "a", "max_tokens": 2}


@dataclass(frozen=True)
class Closed:
    """A server with keys and TLS."""

    server: Server
    keys: Path
    trusted: ssl.SSLContext

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.ports.openai}"

    def client(self, key: str = "", **headers: str) -> httpx.Client:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx.Client(
            base_url=self.url, verify=self.trusted, headers=headers, timeout=120, trust_env=False
        )

    @contextmanager
    def connection(self, sent: str) -> Iterator[ssl.SSLSocket]:
        """Send the beginning of a request, or all of it, on a connection of its own."""
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else it may hold a whole answer
            plain.connect(("127.0.0.1", self.server.ports.openai))
            with self.trusted.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                secured.settimeout(120)
                secured.sendall(sent.encode())
                yield secured


@pytest.fixture(scope="module")
def closed(
    new_door: Callable[..., AbstractContextManager[Server]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Closed]:
    folder = tmp_path_factory.mktemp("tls")
    files = make_certificate(folder)
    settings = {
        "keys": str(folder / "keys.json"),
        "tls": asdict(files),
        "request_log": str(folder / "requests.jsonl"),
    }
    with new_door(json.dumps(settings)) as server:
        yield Closed(server, folder / "keys.json", ssl.create_default_context(cafile=files.certificate))


@pytest.fixture
def key(closed: Closed, request: pytest.FixtureRequest) -> str:
    return add_key(closed.keys, request.node.name, None, None)


@pytest.mark.parametrize("given", [b"", b"dp-wrong", b"\xff"], ids=["none", "wrong", "no text"])
def test_without_a_key_nothing_is_answered(closed: Closed, given: bytes) -> None:
    headers = {"Authorization": b"Bearer " + given} if given else {}
    for method, path in PATHS:
        with closed.client() as client:
            refused = client.request(method, path, json=BODY if method == "POST" else None, headers=headers)
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer"), path
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert "wrong" not in refused.text
    with closed.connection("POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n") as unsent:
        assert unsent.recv(12) == b"HTTP/1.1 401", "the body is not waited for"


def test_probes_need_no_key(closed: Closed) -> None:
    with closed.client() as client:
        assert client.get("/health").status_code == 200


def test_a_request_is_logged_with_its_keys_name_and_without_its_prompt(closed: Closed, key: str) -> None:
    with closed.client(key) as client:
        answered = client.post("/v1/completions", json={**BODY, "prompt": "a secret"})
    request_id, log = answered.headers["X-Request-Id"], closed.keys.parent / "requests.jsonl"
    assert wait_until(lambda: f'"{request_id}"' in log.read_text()), "it is written after the answer"
    lines = log.read_text().splitlines()
    [line] = [each for each in map(json.loads, lines) if each["request_id"] == request_id]
    assert line["key"].startswith("test_a_request_is_logged") and line["status"] == 200
    assert line["answers"][0]["output_tokens"] == answered.json()["usage"]["completion_tokens"]
    assert "secret" not in "".join(lines)


def test_openai_s_client_sends_its_key_over_tls_until_it_is_withdrawn(closed: Closed) -> None:
    key = add_key(closed.keys, "to be withdrawn", None, None)
    trusting = httpx.Client(verify=closed.trusted, trust_env=False)
    with openai.OpenAI(
        base_url=f"{closed.url}/v1", api_key=key, http_client=trusting, max_retries=0
    ) as client:
        assert client.completions.create(model=MODEL, prompt="a", max_tokens=2).choices[0].text
        remove_key(closed.keys, "to be withdrawn")
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{closed.url.replace('https', 'http')}/health", trust_env=False)


@pytest.mark.parametrize(
    ("max_requests", "max_tokens", "body", "too_large"),
    [
        (1, None, BODY, None),
        (None, 2000, {**BODY, "max_tokens": 10, "n": 9}, {**BODY, "max_tokens": 450, "n": 9}),
    ],
    ids=["requests", "tokens"],
)
def test_a_client_at_its_limit_is_told_to_wait(
    closed: Closed,
    key: str,
    max_requests: int | None,
    max_tokens: int | None,
    body: dict[str, object],
    too_large: dict[str, object] | None,
) -> None:
    limited = add_key(closed.keys, f"{max_requests} {max_tokens}", max_requests, max_tokens)
    with closed.client(limited) as client, closed.client(key) as other:
        with client.stream("POST", "/v1/completions", json=UNREAD) as streamed:
            lines = streamed.iter_lines()  # its end would end the request
            next(lines)
            refused = client.post("/v1/completions", json=body)
            assert client.get("/v1/models").status_code == 200
            assert other.post("/v1/completions", json=body).status_code == 200
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert wait_until(lambda: client.post("/v1/completions", json=body).status_code == 200)
        if too_large is not None:
            refused = client.post("/v1/completions", json=too_large)
            assert refused.status_code == 400 and "2000 at a time" in refused.json()["error"]["what"]


def test_an_answer_that_is_not_read_counts_for_its_key(closed: Closed) -> None:
    limited = add_key(closed.keys, "does not read", 1, None)
    body = json.dumps({**UNREAD, "stream": False})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {limited}\r\n"
    with closed.connection(f"{head}Content-Length: {len(body)}\r\n\r\n{body}"):
        assert wait_until(lambda: is_busy(closed.server))
        assert wait_until(lambda: all_blocks_are_free(closed.server))
        time.sleep(1)  # for the answer to be written
        with closed.client(limited) as client:
            assert client.post("/v1/completions", json=BODY).status_code == 429
    with closed.client(limited) as client:
        assert wait_until(lambda: client.post("/v1/completions", json=BODY).status_code == 200)


def test_keys_are_not_in_the_log(closed: Closed, key: str) -> None:
    with closed.client(key) as client:
        for body in (BODY, {"prompt": 1}, {"prompt": "a", "n": 99}):
            client.post("/v1/completions", json=body)
    document = json.loads(closed.keys.read_text())
    log = closed.server.log.read_text()
    assert key not in log and "Traceback" not in log
    assert not any(each["sha256"] in log for each in document["keys"])
