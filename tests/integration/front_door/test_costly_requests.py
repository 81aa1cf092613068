"""Tests of small requests that would end or hold up a server: each is refused, or answered beside others.

``make test`` sends those that are refused at once, ``make test-all`` all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.deploy.server import Server
from tests.attacks.answers import in_a_list, in_an_argument, of_one_token
from tests.attacks.cost import Attack, OtherClient, attacks, cost_of
from tests.attacks.guides import Body
from tests.integration.attacked import Attacked
from tests.integration.front_door.conftest import post
from tests.integration.front_door.test_restart import front_door

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

CHEAP = {"1,200 references", "2,800 rules", "a const of 250 KB", "a name of 40,000 bytes, 0"}


@pytest.fixture(scope="module")
def attacked(door: Server) -> Attacked:
    """Return the server's state before the first request."""
    return Attacked.unharmed(door, ("127.0.0.1", door.ports.http))


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=attack[0], marks=() if attack[0] in CHEAP else pytest.mark.long)
        for attack in attacks()
    ],
)
def test_it_is_refused_or_answered_and_no_other_stream_breaks(attack: Attack, attacked: Attacked) -> None:
    server = attacked.server
    before = front_door(server)
    with OtherClient(server.openai_url) as other:
        cost = cost_of(server.openai_url, attack, other)
    print(cost)
    assert cost.reply in ("200", "400", "503"), cost  # busy: the trial of a guide got no time
    assert cost.num_broken == 0 and cost.is_alive, cost
    assert front_door(server) == before
    assert attacked.is_unharmed()


@pytest.mark.parametrize("text", [" ", "[", "1", "<"])
@pytest.mark.parametrize(
    "make",
    [
        lambda token_id: of_one_token(token_id, 200, num_functions=2),  # the pair's context holds no more
        lambda token_id: in_an_argument(token_id, 200),
        lambda token_id: in_a_list(200),
    ],
    ids=["one token", "argument", "list"],
)
def test_a_slow_answer_is_streamed_to_its_end(door: Server, make: Callable[[int], Body], text: str) -> None:
    (token_id,) = post(door, "/tokenize", {"prompt": text}).json()["tokens"]
    answered = post(door, "/v1/chat/completions", {**make(token_id), "stream": True})
    assert answered.status_code == 200, answered.text
    assert '"finish_reason":"length"' in answered.text and answered.text.endswith("data: [DONE]\n\n")
