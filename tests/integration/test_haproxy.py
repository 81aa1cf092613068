"""Tests of the real HAProxy with the rendered configuration, in front of a recording backend."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipelines.deploy.ports import Ports
from tests.attacks import HTTP_ATTACKS, SMUGGLING_ATTACKS, Attack
from tests.attacks.http import GENERATE, STREAM
from tests.attacks.raw_http import exchange, generate_body, get, head, post
from tests.integration.conftest import wait_until
from tests.support.certificate import make_certificate
from tests.support.haproxy import HAPROXY, IS_MISSING, Proxy, listens, proxies
from tests.support.loopback_http import SilentHandler, served

MODELS = "generate|generate_target|router|ensemble"
ALLOWED = re.compile(
    rf"GET (/v2|/v2/health/(live|ready)|/v2/models/({MODELS})(/ready)?)"
    rf"|POST /v2/models/({MODELS})/(infer|generate|generate_stream)"
)
MAX_BODY_BYTES = 2 << 20
pytestmark = pytest.mark.skipif(HAPROXY is None, reason=IS_MISSING)


@dataclass
class Backend:
    """A backend in the gateway's place that records what reaches it.

    Attributes:
        requests: Method, path, lower-case headers and body of each request except health checks.
        more: Set to send the second half of a stream.
    """

    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    is_ready: bool = True
    more: threading.Event = field(default_factory=threading.Event)


class Recording(SilentHandler):
    """Answers every request; streams come in two halves."""

    protocol_version = "HTTP/1.1"
    backend: Backend

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def do_GET(self) -> None:
        is_check = self.path in ("/v2/health/ready", "/v2/models/router/ready")
        if not is_check:
            self._record(b"")
        self.send_whole(200 if self.backend.is_ready or not is_check else 503, b"{}")

    def do_POST(self) -> None:
        self._record(self.read_body())
        if not self.path.endswith("generate_stream"):
            self.send_whole(200, b"{}")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\none\r\n")
        self.backend.more.wait(120)
        self.wfile.write(b"3\r\ntwo\r\n0\r\n\r\n")

    def _record(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.backend.requests.append((self.command, self.path, headers, body))


@pytest.fixture(scope="module")
def backend() -> Iterator[tuple[Backend, int]]:
    """Return a backend and its port."""
    recorded = Backend()
    recorded.more.set()
    with served(Recording, backend=recorded) as url:
        yield recorded, int(url.rpartition(":")[2])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Proxy]]:
    """Start HAProxy; see ``proxies``."""
    with proxies(tmp_path_factory.mktemp("haproxy")) as begin:
        yield begin


@pytest.fixture(scope="module")
def impatient(backend: tuple[Backend, int], start: Callable[..., Proxy]) -> Proxy:
    """Return HAProxy before the recording backend; it waits 1 s for slow clients."""
    port = backend[1]
    return start(Ports(port, port, port), {"timeout http-request 10s": "timeout http-request 1s"})


@pytest.fixture
def recorded(backend: tuple[Backend, int], impatient: Proxy) -> tuple[Backend, Proxy]:
    """Return the recording backend, emptied, and HAProxy before it."""
    backend[0].requests.clear()
    return backend[0], impatient


REFUSED = {
    "chunked flood": "411",
    "chunked flood, compressed": "415",
    "text of 64 MiB": "413",
    "gzip bomb": "415",
    "generate, from another site's page": "403",
    "load a model of the client's": "404",
    "list the repository": "404",
    "change the logging": "404",
    "change the tracing": "404",
    "register shared memory": "404",
    "statistics of a model": "404",
    "internal model speculative": "404",
    "chunks, one of them": "411",
    "length and chunks": "411",
    "question with chunks": "411",
    "two lengths": "400",
    "control behind an absolute address": "404",
    "slow header": "408",
    "slow body": "408",
}
"""Statuses of what HAProxy itself answers."""


@pytest.mark.parametrize("attack", (*HTTP_ATTACKS, *SMUGGLING_ATTACKS), ids=lambda attack: attack.name)
def test_only_well_framed_requests_for_open_paths_pass(
    attack: Attack, recorded: tuple[Backend, Proxy]
) -> None:
    seen, proxy = recorded
    reply = attack.send(proxy.http)
    if attack.name in REFUSED:
        assert reply.status in (REFUSED[attack.name], "closed") and not seen.requests
    if not seen.requests:
        assert reply.status[0] == "4" or reply.status == "closed", reply
        if reply.status not in ("400", "408", "closed"):  # HAProxy refuses invalid HTTP in its own words
            assert "draftproof/" in json.loads(reply.text)["error"]
    for method, path, headers, body in seen.requests:
        assert ALLOWED.fullmatch(f"{method} {path}"), path
        assert not {"transfer-encoding", "content-encoding", "origin", "draftproof-key"} & set(headers)
        assert headers.get("content-length", "0") == str(len(body))
        assert len(body) <= MAX_BODY_BYTES
    assert post(proxy.http, GENERATE, generate_body()).status == "200"


def test_the_recording_backend_sees_what_comes_without_haproxy(backend: tuple[Backend, int]) -> None:
    """Negative control of the tests above."""
    backend[0].requests.clear()
    attack = next(each for each in HTTP_ATTACKS if each.name == "list the repository")
    assert attack.send(("127.0.0.1", backend[1])).status == "200"
    assert [request[1] for request in backend[0].requests] == ["/v2/repository/index"]


def test_the_key_of_operators_opens_nothing(recorded: tuple[Backend, Proxy]) -> None:
    seen, proxy = recorded
    key = "draftproof-key: secret"
    assert post(proxy.http, "/v2/repository/models/x/load", b"{}", key).status == "404"
    assert post(proxy.http, GENERATE, generate_body(), key).status == "200"
    [request] = seen.requests
    assert "draftproof-key" not in request[2]


def test_a_stream_comes_chunk_by_chunk_and_outlives_the_order_to_end(
    backend: tuple[Backend, int], start: Callable[..., Proxy]
) -> None:
    seen, port = backend
    seen.more.clear()
    proxy = start(Ports(port, port, port))
    connection = http.client.HTTPConnection(*proxy.http, timeout=120)
    connection.request("POST", STREAM, generate_body())
    response = connection.getresponse()
    assert response.read(3) == b"one", "the second half has not been sent yet"
    proxy.process.send_signal(signal.SIGUSR1)
    assert wait_until(lambda: not listens(proxy.ports.http))
    seen.more.set()
    assert response.read() == b"two"
    connection.close()
    assert proxy.process.wait(120) == 0


def test_a_server_that_is_not_ready_gets_no_requests_and_says_so(recorded: tuple[Backend, Proxy]) -> None:
    seen, proxy = recorded
    seen.is_ready = False
    assert wait_until(lambda: post(proxy.http, GENERATE, generate_body()).status == "503")
    assert "draftproof/server_unavailable" in post(proxy.http, GENERATE, generate_body()).text
    assert get(proxy.http, "/v2/health/ready").status == "503"
    seen.is_ready = True
    assert wait_until(lambda: post(proxy.http, GENERATE, generate_body()).status == "200")


def test_too_many_requests_of_one_address_are_told_so(
    backend: tuple[Backend, int], start: Callable[..., Proxy]
) -> None:
    port = backend[1]
    proxy = start(Ports(port, port, port), {"sc0_http_req_rate gt 5000": "sc0_http_req_rate gt 20"})
    replies = [post(proxy.http, GENERATE, generate_body()) for _ in range(30)]
    statuses = [reply.status for reply in replies]
    assert statuses == sorted(statuses)
    assert {"200", "429"} == set(statuses)
    assert "draftproof/server_busy" in replies[-1].text


def test_connections_per_address_are_limited(
    backend: tuple[Backend, int], start: Callable[..., Proxy]
) -> None:
    port = backend[1]
    proxy = start(Ports(port, port, port), {"sc0_conn_cur gt 1000": "sc0_conn_cur gt 10"})
    with contextlib.ExitStack() as stack:
        for _ in range(20):  # 10 of them stay open
            stack.enter_context(socket.create_connection(proxy.http))
        assert wait_until(lambda: get(proxy.http, "/v2").status == "closed")
    assert wait_until(lambda: get(proxy.http, "/v2").status == "200")


def test_the_metrics_port_answers_metrics_health_and_nothing_else(recorded: tuple[Backend, Proxy]) -> None:
    seen, proxy = recorded
    address = ("127.0.0.1", proxy.ports.metrics)
    assert get(address, "/haproxy").status == "200"
    assert get(address, "/metrics").status == get(address, "/v2/health/ready").status == "200"
    assert get(address, "/v2/models/router/ready").status == "200"
    assert {request[1] for request in seen.requests} == {"/metrics"}
    for path in ("/v2", "/v2/repository/index", "/"):
        assert get(address, path).status == "404"
    assert post(address, "/metrics", b"{}").status == "404"
    assert {request[1] for request in seen.requests} == {"/metrics"}
    for name, status in (("rebound.evil.example", "403"), ("evil@127.0.0.1", "403"), ("server:8102", "200")):
        sent = f"GET /metrics HTTP/1.1\r\nHost: {name}\r\n\r\n".encode()
        assert exchange(address, [sent]).status == status, name
    _, _, headers, _ = seen.requests[-1]
    assert headers["host"] == "localhost"


def test_tls_ends_here_where_a_certificate_is_mounted(
    tmp_path: Path, backend: tuple[Backend, int], start: Callable[..., Proxy]
) -> None:
    tls = make_certificate(tmp_path)
    port = backend[1]
    proxy = start(Ports(port, port, port), certificates=tmp_path)
    assert post(proxy.http, GENERATE, generate_body()).status != "200", "this is no TLS"
    context = ssl.create_default_context(cafile=tls.certificate)
    with (
        socket.create_connection(proxy.http) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        body = generate_body()
        secured.sendall(head(GENERATE, f"Content-Length: {len(body)}") + body)
        assert secured.recv(12) == b"HTTP/1.1 200"
