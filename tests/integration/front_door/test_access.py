"""Tests of keys, limits, TLS and web pages on a real server."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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

PAGE = "https://chat.example.org"
PATHS = [
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/nothing"),
]
BODY = {"prompt": "a", "max_tokens": 2}


@dataclass(frozen=True)
class Closed:
    """A server with keys and TLS.

    Attributes:
        server: The server.
        keys: Its file of keys.
        trusted: Trusts its certificate.
    """

    server: Server
    keys: Path
    trusted: ssl.SSLContext

    def client(self, key: str = "", **headers: str) -> httpx.Client:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url = f"https://127.0.0.1:{self.server.ports.openai}"
        return httpx.Client(base_url=url, verify=self.trusted, headers=headers, timeout=120, trust_env=False)


@pytest.fixture(scope="module")
def closed(
    new_door: Callable[..., AbstractContextManager[Server]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Closed]:
    folder = tmp_path_factory.mktemp("tls")
    files = make_certificate(folder)
    settings = {
        "keys": str(folder / "keys.json"),
        "tls": asdict(files),
        "cors_origins": [PAGE],
        "request_log": str(folder / "requests.jsonl"),
    }
    with new_door(json.dumps(settings)) as server:
        yield Closed(server, folder / "keys.json", ssl.create_default_context(cafile=files.certificate))


@pytest.fixture
def key(closed: Closed, request: pytest.FixtureRequest) -> str:
    return add_key(closed.keys, request.node.name, None, None)


@pytest.mark.parametrize("given", ["", "dp-wrong", "\udcff"], ids=["none", "wrong", "no text"])
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_a_key_nothing_is_answered(closed: Closed, method: str, path: str, given: str) -> None:
    headers = {"Authorization": b"Bearer " + given.encode(errors="surrogateescape")} if given else {}
    with closed.client() as client:
        refused = client.request(method, path, json=BODY if method == "POST" else None, headers=headers)
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert "wrong" not in refused.text


def test_this_machine_reads_metrics_without_a_key(closed: Closed) -> None:
    with closed.client() as client:
        assert "vllm:num_requests_running" in client.get("/metrics").text


def test_a_request_is_logged_with_the_name_of_its_key_and_without_its_prompt(
    closed: Closed, key: str
) -> None:
    with closed.client(key) as client:
        answered = client.post("/v1/completions", json={**BODY, "prompt": "a secret"})
    request_id, log = answered.headers["X-Request-Id"], closed.keys.parent / "requests.jsonl"
    assert wait_until(lambda: f'"{request_id}"' in log.read_text()), "it is written after the answer"
    lines = log.read_text().splitlines()
    [line] = [each for each in map(json.loads, lines) if each["request_id"] == request_id]
    assert line["key"].startswith("test_a_request_is_logged") and line["status"] == 200
    assert line["answers"][0]["output_tokens"] == answered.json()["usage"]["completion_tokens"]
    assert "secret" not in "".join(lines)


def test_a_large_body_without_a_key_is_not_read(closed: Closed) -> None:
    with (
        socket.create_connection(("127.0.0.1", closed.server.ports.openai), timeout=120) as plain,
        closed.trusted.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n")
        assert secured.recv(12) == b"HTTP/1.1 401"


def test_probes_and_the_description_need_no_key(closed: Closed) -> None:
    with closed.client() as client:
        assert client.get("/health").status_code == 200
        document = client.get("/openapi.json").json()
    assert document["security"] == [{"key": []}]


def test_openai_s_client_sends_its_key_over_tls(closed: Closed, key: str) -> None:
    url = f"https://127.0.0.1:{closed.server.ports.openai}/v1"
    trusting = httpx.Client(verify=closed.trusted, trust_env=False)
    with openai.OpenAI(base_url=url, api_key=key, http_client=trusting, max_retries=0) as client:
        assert client.completions.create(model=MODEL, prompt="a", max_tokens=2).choices[0].text
    remove_key(closed.keys, "test_openai_s_client_sends_its_key_over_tls")
    trusting = httpx.Client(verify=closed.trusted, trust_env=False)
    with (
        openai.OpenAI(base_url=url, api_key=key, http_client=trusting, max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_plain_http_is_not_answered(closed: Closed) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{closed.server.ports.openai}/health", trust_env=False)


def test_a_client_at_its_limit_of_requests_is_told_to_wait(closed: Closed, key: str) -> None:
    limited = add_key(closed.keys, "one at a time", 1, None)
    with closed.client(limited) as client, closed.client(key) as other:
        with client.stream("POST", "/v1/completions", json=UNREAD) as streamed:
            lines = streamed.iter_lines()  # its end would end the request
            next(lines)
            refused = client.post("/v1/completions", json=BODY)
            assert client.get("/v1/models").status_code == 200
            assert other.post("/tokenize", json={"prompt": "a"}).status_code == 200
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert wait_until(lambda: client.post("/v1/completions", json=BODY).status_code == 200)


def test_tokens_at_a_time_are_limited(closed: Closed) -> None:
    limited = add_key(closed.keys, "5,000 tokens", None, 5000)
    large = {**BODY, "max_tokens": 100, "n": 12}
    with closed.client(limited) as client:
        with client.stream("POST", "/v1/completions", json=UNREAD) as streamed:
            lines = streamed.iter_lines()  # its end would end the request
            next(lines)
            assert client.post("/v1/completions", json=large).status_code == 429
        too_large = client.post("/v1/completions", json={**large, "max_tokens": 450})
        assert (too_large.status_code, too_large.json()["error"]["limit"]) == (400, "5000 at a time")
        assert wait_until(lambda: client.post("/v1/completions", json=large).status_code == 200)


def test_an_answer_that_is_not_read_counts_for_its_key(closed: Closed) -> None:
    limited = add_key(closed.keys, "does not read", 1, None)
    body = json.dumps({**UNREAD, "stream": False})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {limited}\r\n"
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else it may hold the whole answer
    plain.connect(("127.0.0.1", closed.server.ports.openai))
    with closed.trusted.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
        secured.settimeout(120)
        secured.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert wait_until(lambda: is_busy(closed.server))
        assert wait_until(lambda: all_blocks_are_free(closed.server))
        time.sleep(1)  # for the answer to be written
        with closed.client(limited) as client:
            assert client.post("/v1/completions", json=BODY).status_code == 429
    with closed.client(limited) as client:
        assert wait_until(lambda: client.post("/v1/completions", json=BODY).status_code == 200)


@pytest.mark.parametrize("streaming", [False, True])
def test_pages_of_allowed_origins_may_read_answers_and_errors(
    closed: Closed, key: str, streaming: bool
) -> None:
    with closed.client(key, Origin=PAGE, **{"Sec-Fetch-Site": "cross-site"}) as page:
        answers = [
            page.post("/v1/completions", json={**BODY, "stream": streaming}),
            page.post("/v1/completions", json={"prompt": 1}),
        ]
        asked = {"Access-Control-Request-Method": "POST"}
        answers.append(page.options("/v1/completions", headers={**asked, "Authorization": ""}))
    assert [each.status_code for each in answers] == [200, 400, 204]
    assert all(each.headers["Access-Control-Allow-Origin"] == PAGE for each in answers)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example", "Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
    ],
    ids=["origin", "null", "site", "rebinding"],
)
def test_pages_of_other_sites_are_refused(closed: Closed, key: str, headers: dict[str, str]) -> None:
    with closed.client(key) as client:
        refused = client.post("/v1/completions", content=json.dumps(BODY), headers=headers)
        assert refused.status_code == 403
        assert "Access-Control-Allow-Origin" not in refused.headers
        preflight = client.options("/v1/completions", headers=headers)
        assert preflight.status_code == 403


def test_keys_are_not_in_the_log(closed: Closed, key: str) -> None:
    with closed.client(key) as client:
        bodies: list[Any] = [BODY, {"prompt": 1}, {"prompt": "a", "n": 99}]
        for body in bodies:
            client.post("/v1/completions", json=body)
    document = json.loads(closed.keys.read_text())
    log = closed.server.log.read_text()
    assert key not in log and "Traceback" not in log
    assert not any(each["sha256"] in log for each in document["keys"])
