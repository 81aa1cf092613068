"""Tests of random combinations of request features: generate must answer as the target alone does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.validation.exact.comparing import first_difference
from tests.integration.conftest import MAX_DRAFT_LEN, grpc_client, http_client
from tests.support.examples import examples

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

PROMPTS = (
    "def main():\n",
    "import os\n\n\nclass Reader(",
    "x",
    "naïve ☕ text, ",
    "for i in range(10):\n    ",
)
# Random weights generate any letters, so short words of few letters occur often.
WORDS = st.lists(
    st.sampled_from(["e", "a", "in", "re", "st", "self", " ", "☕", "_t"]), max_size=3, unique=True
)


@st.composite
def requests(draw: st.DrawFn) -> CompletionRequest:
    """Draw any request that ``generate`` takes; each parameter keeps its default half of the time."""
    max_tokens = draw(st.integers(1, 40))

    def some(values: st.SearchStrategy[Any], default: Any) -> Any:
        return draw(st.one_of(st.just(default), values))

    return CompletionRequest(
        draw(st.sampled_from(PROMPTS)),
        max_tokens=max_tokens,
        temperature=some(st.sampled_from([0.3, 0.8, 1.0, 1.7]), 0.0),
        top_k=some(st.integers(1, 60), 0),
        top_p=some(st.sampled_from([0.2, 0.7, 0.95]), 1.0),
        min_p=some(st.sampled_from([0.01, 0.1, 0.5]), 0.0),
        repetition_penalty=some(st.sampled_from([0.7, 1.1, 1.8]), 1.0),
        presence_penalty=some(st.sampled_from([-2.0, 0.6, 2.0]), 0.0),
        frequency_penalty=some(st.sampled_from([-0.5, 0.3, 2.0]), 0.0),
        min_tokens=some(st.integers(0, max_tokens), 0),
        stop_words=tuple(draw(WORDS)),
        bad_words=tuple(draw(WORDS)),
        end_id=some(st.integers(0, 2047), None),
        logit_bias=tuple(
            some(st.dictionaries(st.integers(0, 2047), st.floats(-20, 20, width=32)), {}).items()
        ),
        num_log_probs=some(st.integers(0, 5), None),
        seed=some(st.integers(0, 2**64 - 1), None),
    )


@pytest.fixture(scope="module")
def clients(server: Server) -> Iterator[dict[str, Client]]:
    with grpc_client(server) as grpc, http_client(server) as http:
        yield {"grpc": grpc, "http": http}


def ask(client: Client, request: CompletionRequest, model: str, *, streaming: bool) -> Generation:
    if not streaming:
        return client.generate(request, model)
    with client.stream(request, model) as stream:
        return stream.result()


# The fixtures live as long as the module, so an example costs a round trip, not a server.
@examples(60)
@given(data=st.data())
def test_any_combination_has_the_targets_answer(clients: dict[str, Client], data: st.DataObject) -> None:
    request = data.draw(requests(), label="request")
    length = data.draw(st.one_of(st.none(), st.integers(0, MAX_DRAFT_LEN)), label="num_draft_tokens")
    transport = data.draw(st.sampled_from(["grpc", "http"]), label="transport")
    streaming = data.draw(st.booleans(), label="streaming")
    mate = data.draw(st.one_of(st.none(), requests()), label="batch mate")
    mates = []
    if mate is not None:  # in flight while the request is answered
        mates.append(threading.Thread(target=clients["grpc"].generate, args=(mate, "generate")))
        mates[0].start()
    drafted = replace(request, num_draft_tokens=length)
    answer = ask(clients[transport], drafted, "generate", streaming=streaming)
    for thread in mates:
        thread.join()
    # Without a seed the server drew one and reported it; with that seed the target alone gives the same
    # answer.
    seeded = replace(request, seed=answer.seed)
    alone = ask(clients["grpc"], seeded, "generate_target", streaming=not streaming)
    assert first_difference("drawn", alone, answer, seeded) is None
    text = answer.text
    assert not any(word in text for word in (*request.bad_words,))
