"""Tests of attacks on the gateway as `draftproof serve` starts it: each is refused, and nothing else changes.

``test_haproxy.py`` sends them to HAProxy. Slow senders take half a minute: pytest tests -m long.
"""

from __future__ import annotations

import json

import httpx
import pytest

from pipelines.deploy.server import Server
from tests.attacks import GRPC_ATTACKS, HTTP_ATTACKS, SMUGGLING_ATTACKS, Attack
from tests.attacks.grpc import request, stream
from tests.attacks.http import GENERATE, INFER
from tests.attacks.raw_http import generate_body, infer_body, post
from tests.integration.attacked import OVER_GRPC, TO_THE_GATEWAY, Attacked, attacks, is_typed

pytestmark = [pytest.mark.triton, pytest.mark.long]


@pytest.fixture(scope="module")
def logged_before(server: Server) -> int:
    """Return the log's size before the first attack."""
    return server.log.stat().st_size


@pytest.fixture(scope="module")
def attacked(server: Server, logged_before: int) -> Attacked:
    """Return the server's state before the first attack."""
    return Attacked.unharmed(server, ("127.0.0.1", server.ports.http))


@pytest.mark.parametrize(
    "attack", attacks(HTTP_ATTACKS, SMUGGLING_ATTACKS, long=("slow header", "slow body"))
)
def test_http(attack: Attack, attacked: Attacked) -> None:
    attacked.withstands(attack, attacked.http, TO_THE_GATEWAY)


@pytest.mark.parametrize("attack", attacks(GRPC_ATTACKS))
def test_grpc(attack: Attack, attacked: Attacked) -> None:
    attacked.withstands(attack, ("127.0.0.1", attacked.server.ports.grpc), OVER_GRPC)


LONE = "\ud800"


@pytest.mark.parametrize(
    "changes",
    [{"id": LONE}, {LONE: 1}, {"parameters": {LONE: 1}}, {"parameters": {"x": LONE}}, {"text_input": LONE}],
    ids=["id", "name", "parameter", "value", "text"],
)
def test_half_a_character_is_refused_anywhere(changes: dict[str, object], attacked: Attacked) -> None:
    assert is_typed(post(attacked.http, GENERATE, generate_body(**changes)))


@pytest.mark.parametrize(
    "changes",
    [{"id": "a\0b"}, {"parameters": {"draftproof_key\0": 1}}, {"outputs": [{"name": "text_output\0"}]}],
    ids=["id", "parameter", "output"],
)
def test_triton_gets_no_name_that_it_would_cut(changes: dict[str, object], attacked: Attacked) -> None:
    """Triton reads a name up to its first NUL: it would see another name than the one that was checked."""
    assert is_typed(post(attacked.http, INFER, json.dumps(infer_body(**changes)).encode()))


def test_refusals_of_triton_itself_are_ours_in_a_stream_too(attacked: Attacked) -> None:
    refused = stream("", lambda: [request("generate"), request("generate", model_version="9" * 40)])
    reply = refused.send(("127.0.0.1", attacked.server.ports.grpc))
    assert "Triton refused the request" in reply.text
    assert is_typed(reply)


@pytest.mark.parametrize("key", ["", "x", "\xff", "x" * 4000], ids=["none", "wrong", "no UTF-8", "long"])
def test_no_other_key_opens_anything(key: str, attacked: Attacked) -> None:
    header = f"draftproof-key: {key}"
    assert post(attacked.http, "/v2/repository/index", b"{}", header).status == "403"
    internal = post(attacked.http, "/v2/models/speculative/infer", b"{}", header)
    assert internal.status == "400"
    assert "clients cannot use this model" in internal.text


def test_the_key_opens_what_is_closed(attacked: Attacked) -> None:
    """Negative control of the test above."""
    header = f"draftproof-key: {attacked.server.key}"
    assert post(attacked.http, "/v2/repository/index", b"{}", header).status == "200"


def test_clients_see_a_configuration_without_paths_of_the_machine(attacked: Attacked) -> None:
    url = f"http://127.0.0.1:{attacked.http[1]}/v2/models/generate/config"
    assert httpx.get(url, trust_env=False).json()["parameters"] == {}
    seen = httpx.get(url, headers={"draftproof-key": attacked.server.key}, trust_env=False).json()
    assert seen["parameters"]["stable_socket"], "operators see them"


def test_no_attack_left_a_traceback_in_the_log(attacked: Attacked, logged_before: int) -> None:
    """A client's mistake is not a defect, and would fill the log. Runs after the attacks above."""
    written = attacked.server.log.read_bytes()[logged_before:]
    assert b"Traceback" not in written, written[written.find(b"Traceback") :][:3000].decode()
