"""Tests of every attack on the gateway, sent to the front door, and of the gateway beside a front door."""

from __future__ import annotations

import pytest

from pipelines.deploy.server import Server
from tests.attacks import HTTP_ATTACKS, SMUGGLING_ATTACKS, Attack
from tests.attacks.raw_http import post
from tests.integration.attacked import TO_THE_GATEWAY, Attacked, attacks
from tests.integration.front_door.test_restart import front_door

pytestmark = [pytest.mark.triton, pytest.mark.long, pytest.mark.xdist_group("front door")]

CONTROL = (
    "/v2/repository/index",
    "/v2/repository/models/pwn/load",
    "/v2/systemsharedmemory/status",
    "/v2/logging",
)


@pytest.fixture(scope="module")
def attacked(door: Server) -> Attacked:
    return Attacked.unharmed(door, ("127.0.0.1", door.ports.http))


@pytest.mark.parametrize(
    "attack", attacks(HTTP_ATTACKS, SMUGGLING_ATTACKS, long=("slow header", "slow body"))
)
def test_the_front_door_refuses_what_the_gateway_refuses(attack: Attack, attacked: Attacked) -> None:
    server = attacked.server
    before = front_door(server)
    reply = attack.send(("127.0.0.1", server.ports.openai))
    assert "Traceback" not in reply.text
    assert reply.status[0] == "4" or reply.status in ("closed", "silent"), reply
    assert front_door(server) == before
    answer = post(("127.0.0.1", server.ports.openai), "/v1/completions", b'{"prompt": "a", "max_tokens": 2}')
    assert answer.status == "200"


@pytest.mark.parametrize("path", CONTROL)
def test_control_is_closed_at_both_ports(path: str, attacked: Attacked) -> None:
    server = attacked.server
    for port, closed in ((server.ports.http, {"403", "404", "405"}), (server.ports.openai, {"404"})):
        assert post(("127.0.0.1", port), path, b"{}").status in closed
        assert post(("127.0.0.1", port), path, b"{}", "draftproof-key: wrong").status in closed


def test_the_gateway_withstands_attacks_with_a_front_door(attacked: Attacked) -> None:
    for attack in HTTP_ATTACKS[:40]:
        if not attack.name.startswith("slow"):
            attacked.withstands(attack, attacked.http, TO_THE_GATEWAY)
