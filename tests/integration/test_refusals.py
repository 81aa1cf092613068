"""Tests of the errors that a real Triton server returns for bad input, unnoticed by other clients."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pipelines.client import CompletionRequest
from pipelines.client.refusals import refusal
from pipelines.deploy.server import Server
from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTimeoutError,
    ServerBusyError,
    from_wire,
)
from tests.integration.conftest import (
    MAX_BATCH_SIZE,
    MAX_DRAFT_LEN,
    MAX_QUEUE_SIZE,
    grpc_client,
    post,
    stream_infer,
    text_tensors,
    wait_until,
)
from tests.support.tiny_engines import tiny_config

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

VOCAB_SIZE = int(tiny_config()["vocab_size"])
HUGE = "x" * 10**6

BAD_BODIES: dict[str, tuple[dict[str, Any] | bytes, type[DraftproofError], str]] = {
    "empty prompt": ({"text_input": ""}, InvalidRequestError, "prompt is empty"),
    "max_tokens of 0": ({"max_tokens": 0}, InvalidRequestError, "max_tokens=0"),
    "max_tokens over the limit": ({"max_tokens": 10**6}, PromptTooLongError, "1000000"),
    "prompt too long": ({"text_input": "x " * 600}, PromptTooLongError, "max_seq_len"),
    "prompt far too long": ({"text_input": HUGE}, PromptTooLongError, "1000000"),
    "draft too long": (
        {"num_draft_tokens": MAX_DRAFT_LEN + 1},
        InvalidRequestError,
        f"max_draft_len={MAX_DRAFT_LEN}",
    ),
    "invalid UTF-8": (b'{"text_input": "caf\xe9", "max_tokens": 4}', InvalidRequestError, "0xe9"),
    "misspelt parameter": ({"temprature": 0.5}, InvalidRequestError, "did you mean 'temperature'"),
    "deadline passed": ({"parameters": {"timeout": 1}}, RequestTimeoutError, "deadline"),
    "long session": ({"session_id": HUGE}, InvalidRequestError, "the session_id has 1000000 bytes"),
    "long name": ({HUGE: 1}, InvalidRequestError, "the parameters of the request cannot be used"),
    "long parameter": ({"p": HUGE}, InvalidRequestError, "more than 16384"),
    "long id": ({"id": HUGE}, InvalidRequestError, "the request id, of 1000000 bytes"),
    "long stop word": ({"stop_words": [HUGE]}, InvalidRequestError, "a stop word is empty or too long"),
    "many stop words": ({"stop_words": ["x"] * 10_000}, InvalidRequestError, "too many stop words: 10000"),
}


# Parameters besides a prompt and max_tokens=4, and words of the refusal: one for each place that refuses. The
# ranges are tested in tests/unit.
BAD_PARAMETERS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"top_k": -1}, "top_k=-1"),
    ({"temperature": math.inf}, "temperature"),
    ({"min_tokens": 5}, "min_tokens=5"),
    ({"logit_bias_ids": [VOCAB_SIZE], "logit_bias_values": [1.0]}, f"id {VOCAB_SIZE}"),
    ({"logit_bias_ids": [3, 4], "logit_bias_values": [1.0]}, "2 ids and logit_bias_values 1 values"),
    ({"num_log_probs": 2, "return_log_probs": False}, "return_log_probs=true"),
    ({"stop_words": ["a", ""]}, "a stop word is empty"),
    ({"bad_words": ["<|endoftext|>"]}, "logit_bias_ids"),
    ({"bad_words": ["a"] * 33}, "too many bad words: 33"),
)


def post_or_raise(server: Server, body: dict[str, Any], model: str) -> None:
    reply = post(server, body, model)
    if "error" in reply.json():
        raise refusal(reply.json()["error"])


@pytest.mark.parametrize(
    ("transport", "model"),
    [("grpc", "generate"), pytest.param("http", "generate_target", marks=pytest.mark.long)],
)
def test_bad_parameters_are_refused_before_taking_a_place(server: Server, transport: str, model: str) -> None:
    def send(**values: Any) -> None:
        if transport == "grpc":
            stream_infer(server, text_tensors(text_input="x", **values), model)
        else:
            post_or_raise(server, {"text_input": "x", **values}, model)

    with every_place_taken(server, model):
        # The server is full before and after the refusals: they take no place and free none.
        assert wait_until(lambda: is_busy(send))
        for values, words in BAD_PARAMETERS:
            with pytest.raises(InvalidRequestError) as refused:
                send(**{"max_tokens": 4, **values})
            assert words in str(refused.value), values
            assert refused.value.remedy
            assert "Traceback" not in str(refused.value)
        assert wait_until(lambda: is_busy(send))


@contextlib.contextmanager
def every_place_taken(server: Server, model: str) -> Iterator[None]:
    """Keep twice as many clients asking as the server has places."""
    is_over = threading.Event()

    def ask() -> None:
        with grpc_client(server) as client:
            while not is_over.is_set():
                with contextlib.suppress(ServerBusyError):
                    client.generate(CompletionRequest("def main(", max_tokens=450, end_id=-1), model)
                is_over.wait(0.2)  # so many clients take a free place at once all the same

    askers = 2 * (MAX_BATCH_SIZE + MAX_QUEUE_SIZE)
    with ThreadPoolExecutor(askers) as pool:
        asking = [pool.submit(ask) for _ in range(askers)]
        try:
            yield
        finally:
            is_over.set()
    for done in asking:
        done.result()


def is_busy(send: Callable[..., None]) -> bool:
    try:
        send(max_tokens=1)
    except ServerBusyError:
        return True
    return False


@pytest.mark.parametrize("name", ["num_draft_tokens", "use_draft_logits"])
def test_the_target_alone_refuses_what_only_the_loop_has(server: Server, name: str) -> None:
    value = {"num_draft_tokens": 2, "use_draft_logits": True}[name]
    with pytest.raises(InvalidRequestError, match=name):
        post_or_raise(server, {"text_input": "x", "max_tokens": 4, name: value}, "generate_target")
    with pytest.raises(InvalidRequestError, match=name):
        tensors = text_tensors(text_input="x", max_tokens=4, **{name: value})
        stream_infer(server, tensors, "generate_target")


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_input_gets_its_error_and_harms_nobody(server: Server, name: str) -> None:
    body, kind, words = BAD_BODIES[name]
    request = CompletionRequest("def main(", max_tokens=100)
    with grpc_client(server) as client:
        bystander = client.stream(request)
        reply = post(
            server, body if isinstance(body, bytes) else {"text_input": "x", "max_tokens": 4, **body}
        )
        assert len(bystander.result().output_ids) == 100
    error = from_wire(reply.json()["error"])
    assert type(error) is kind
    assert words in str(error) and len(str(error)) < 1000
    assert "Traceback" not in reply.text


def test_nobody_waits_for_anothers_long_prompts(server: Server) -> None:
    """Prompts have the largest allowed size, beside a stream whose answer must not change."""
    request = CompletionRequest("def main(", max_tokens=100, seed=3)
    body = json.dumps({"text_input": "x y " * 3000, "max_tokens": 4}).encode()
    with grpc_client(server) as client, ThreadPoolExecutor(8) as pool:
        expected = client.generate(request).output_ids
        replies = [pool.submit(post, server, body) for _ in range(24)]
        assert client.generate(request).output_ids == expected
        for reply in replies:
            error = refusal(reply.result().json()["error"])
            assert "too long" in str(error) or "busy" in error.code
