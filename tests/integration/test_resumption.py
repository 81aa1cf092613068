"""Tests on two real servers that an answer which broke off on one continues on the other as if it had not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary
from tests.integration.conftest import grpc_client, http_client, post
from tests.support.ready_server import ready_server

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

SCHEMA = '{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}'
PLAIN = CompletionRequest("def main(", max_tokens=48, end_id=-1, num_log_probs=2)
SAMPLED = dataclasses.replace(PLAIN, temperature=1.1)
REQUESTS = {
    "greedy": PLAIN,
    "sampled": SAMPLED,
    "truncated": dataclasses.replace(SAMPLED, top_p=0.9, top_k=60, min_p=0.001),
    "penalties": dataclasses.replace(
        SAMPLED, repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.4
    ),
    "words": dataclasses.replace(SAMPLED, bad_words=("e", "th"), stop_words=("zq", "Qx"), min_tokens=12),
    "bias": dataclasses.replace(SAMPLED, logit_bias=((5, 4.0), (300, -100.0)), end_id=5, min_tokens=20),
    "schema": dataclasses.replace(SAMPLED, guide=("json_schema", SCHEMA)),
    "regex": dataclasses.replace(SAMPLED, guide=("regex", "([a-z]{3}[äöü€]){20}")),
    "special tokens in the text": dataclasses.replace(SAMPLED, skip_special_tokens=False),
}
MODELS = ("generate", "generate_target", "router")


@pytest.fixture(scope="module")
def fresh(render: Callable[..., Path]) -> Iterator[Server]:
    """Return a second server of the pair, whose caches know none of the answers."""
    with ready_server(render("tiny-other", "router")) as running:
        yield running


def accepted(ask: Callable[[int], Generation], num_known: int) -> tuple[int, Generation]:
    """Continue after ``num_known`` tokens, or after fewer if these end inside a character or stop word."""
    while True:
        try:
            return num_known, ask(num_known)
        except InvalidRequestError as error:
            assert "ends inside a character or a possible stop word" in str(error)
            num_known -= 1


@pytest.mark.parametrize("kind", REQUESTS)
def test_another_server_continues_to_the_bit(
    server: Server, fresh: Server, tiny_pair: tuple[Path, Path], kind: str
) -> None:
    tokenizer = tiny_pair[1] / "tokenizer.json"
    vocabulary = Vocabulary.parse(tokenizer.read_bytes(), tokenizer)
    chosen = random.Random(kind)
    with grpc_client(server) as first, grpc_client(fresh) as second, http_client(fresh) as over_http:
        for seed in range(3):
            request = dataclasses.replace(REQUESTS[kind], seed=seed)
            whole = first.stream(request, "router").result()
            if len(whole.output_ids) < 2:
                continue
            for model in MODELS:
                client: Client = chosen.choice((second, over_http))
                num_draft_tokens = chosen.choice((None, 0, 5)) if model == "generate" else None

                def rest_of(
                    num_known: int,
                    client: Client = client,
                    model: str = model,
                    request: CompletionRequest = request,
                    whole: Generation = whole,
                    num_draft_tokens: int | None = num_draft_tokens,
                ) -> Generation:
                    known = whole.output_ids[:num_known]
                    asked = dataclasses.replace(
                        request, resume_output_ids=known, num_draft_tokens=num_draft_tokens
                    )
                    return client.generate(asked, model)

                num_known, rest = accepted(rest_of, chosen.randrange(1, len(whole.output_ids)))
                assert whole.output_ids == whole.output_ids[:num_known] + rest.output_ids
                assert rest.log_probs == whole.log_probs[num_known:]
                assert rest.top_log_probs == whole.top_log_probs[num_known:]
                assert (rest.finish_reason, rest.seed) == (whole.finish_reason, seed)
                if request.skip_special_tokens:
                    text = vocabulary.join(whole.output_ids[:num_known]).decode("utf-8", "replace")
                    assert text + rest.text == whole.text


def test_a_stream_that_is_left_continues_on_another_server(server: Server, fresh: Server) -> None:
    """Chunks are as the first server divides them, wherever that is."""
    for seed in range(4):
        request = dataclasses.replace(SAMPLED, seed=seed, max_tokens=200)
        with grpc_client(server) as first, grpc_client(fresh) as second:
            whole = first.stream(request, "router").result()
            with first.stream(request, "router") as stream:
                chunk = next(stream)
            asked = dataclasses.replace(request, resume_output_ids=chunk.output_ids)
            if chunk.finish_reason:
                continue
            rest = second.stream(asked, "router").result()
            assert chunk.text + rest.text == whole.text
            assert chunk.output_ids + rest.output_ids == whole.output_ids
            assert chunk.log_probs + rest.log_probs == whole.log_probs


def test_what_cannot_be_continued_is_refused_with_a_remedy(server: Server) -> None:
    with grpc_client(server) as client:
        for changes, words in (
            ({"resume_output_ids": (5,) * 48}, "nothing is left of the answer"),
            ({"resume_output_ids": (1 << 20,)}, "a token id is outside the vocabulary"),
            ({"resume_output_ids": (5, 6), "guide": ("regex", "[0-9]+")}, "does not follow the grammar"),
            ({"resume_output_ids": (5,) * 40, "max_tokens": 510}, "prompt and output together are too long"),
        ):
            with pytest.raises(InvalidRequestError, match=words) as refused:
                client.generate(dataclasses.replace(PLAIN, **changes), "router")  # type: ignore[arg-type]
            assert refused.value.remedy
    reply = post(server, {"text_input": "x", "max_tokens": 4, "resume_output_ids": [5]}, "ensemble")
    assert reply.status_code == 400 and "'resume_output_ids'" in reply.json()["error"]
