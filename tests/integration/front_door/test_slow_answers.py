"""Tests that answers which are slow to read are accepted, streamed and ended like others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.deploy.server import Server
from tests.attacks.answers import in_a_list, in_an_argument, of_one_token
from tests.attacks.guides import Body
from tests.integration.front_door.conftest import post

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]


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
