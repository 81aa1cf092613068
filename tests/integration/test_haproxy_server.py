"""Tests of the real HAProxy in front of a real server; ``test_haproxy.py`` sends it the attacks."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import InvalidRequestError
from pipelines.wire.request import KEY_HEADER
from tests.attacks import GRPC_ATTACKS, Attack
from tests.attacks.raw_http import get
from tests.integration.conftest import TIMEOUTS, wait_until
from tests.support import kserve_http
from tests.support.haproxy import HAPROXY, IS_MISSING, Proxy, proxies

CALLED = {"list the repository", "load a model", "unload a model", "statistics", "read the tracing"}
CALLED |= {"read the logging", "status of shared memory", "register shared memory", "register CUDA memory"}
CALLED |= {"method that is none", "reflection"}

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(HAPROXY is None, reason=IS_MISSING),
    pytest.mark.xdist_group("server"),
]


@pytest.fixture(scope="module")
def before_gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Return HAProxy before a real server that it has found ready; it waits 1 s for slow clients."""
    with proxies(tmp_path_factory.mktemp("haproxy")) as start:
        proxy = start(server.ports, {"timeout http-request 10s": "timeout http-request 1s"})
        assert wait_until(lambda: get(proxy.http, "/v2/models/generate/ready").status == "200")
        yield proxy


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_answers_and_streams_pass(scheme: str, before_gateway: Proxy) -> None:
    connect = {"http": kserve_http.connect, "grpc": Client.connect}[scheme]
    with connect(f"{scheme}://127.0.0.1:{getattr(before_gateway.ports, scheme)}", TIMEOUTS) as client:
        whole = client.generate(CompletionRequest("x", max_tokens=8))
        chunks = list(client.stream(CompletionRequest("x", max_tokens=8)))
    assert whole.text
    assert "".join(chunk.text for chunk in chunks) == whole.text


@pytest.mark.parametrize(
    "attack", [each for each in GRPC_ATTACKS if each.name in CALLED], ids=lambda a: a.name
)
def test_methods_not_for_clients_are_refused_by_haproxy_itself(attack: Attack, before_gateway: Proxy) -> None:
    reply = attack.send(before_gateway.grpc)
    assert reply.status == "UNIMPLEMENTED"
    assert "clients may not call this method" in reply.text


def test_the_key_of_a_server_opens_nothing_from_here(server: Server, before_gateway: Proxy) -> None:
    """Negative control: the key does open the same things at the gateway."""
    key = server.key

    def over_grpc(ports: Ports) -> bool:
        with Client.connect(f"grpc://127.0.0.1:{ports.grpc}", TIMEOUTS, key) as client:
            try:
                return bool(client.model_parameters("speculative"))
            except InvalidRequestError:
                return False

    def over_http(ports: Ports) -> bool:
        url = f"http://127.0.0.1:{ports.http}/v2/models/speculative"
        return httpx.get(url, headers={KEY_HEADER: key}, timeout=60, trust_env=False).status_code == 200

    for is_open in (over_grpc, over_http):
        assert is_open(server.ports) and not is_open(before_gateway.ports)
