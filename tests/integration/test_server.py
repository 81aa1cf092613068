"""A real Triton server on tiny engines: answers, refusals, and what happens to clients that go away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pipelines.client import Client, CompletionRequest, Generation, Timeouts
from pipelines.deploy import Ports, Server
from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTimeoutError,
    ServerBusyError,
    ServerStartError,
    from_wire,
)
from tests.integration.conftest import (
    MAX_BATCH_SIZE,
    MAX_DRAFT_LEN,
    MAX_QUEUE_SIZE,
    MAX_SEQ_LEN,
    read_gauge,
    wait_until,
)

pytestmark = pytest.mark.triton

TIMEOUTS = Timeouts(connect_s=5, read_s=30, write_s=5, total_s=60)
MODELS = ("generate", "generate_target")
PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__", "naïve café ☕ ", "\n\n\n")


def grpc_client(server: Server) -> Client:
    return Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", TIMEOUTS)


def http_client(server: Server) -> Client:
    return Client.connect(f"http://127.0.0.1:{server.ports.http}", TIMEOUTS)


def post(server: Server, body: dict[str, Any] | bytes, model: str = "generate") -> httpx.Response:
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/{model}/generate"
    if isinstance(body, bytes):
        return httpx.post(url, content=body, timeout=30, trust_env=False)
    return httpx.post(url, json=body, timeout=30, trust_env=False)


def token_ids(generation: Generation) -> list[int]:
    return list(generation.output_ids)


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: Server) -> Any:
    with {"grpc": grpc_client, "http": http_client}[request.param](server) as connected:
        yield connected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_streamed_chunks_join_to_the_text_that_is_not_streamed(
    client: Client, model: str, temperature: float
) -> None:
    for seed, prompt in enumerate(PROMPTS):
        request = CompletionRequest(prompt, max_tokens=60, temperature=temperature, seed=seed)
        whole = client.generate(request, model)
        with client.stream(request, model) as stream:
            chunks = list(stream)
        assert len(chunks) > 1
        assert "".join(chunk.text for chunk in chunks) == whole.text
        streamed_ids = [token_id for chunk in chunks for token_id in chunk.output_ids]
        assert streamed_ids == token_ids(whole)


@pytest.mark.parametrize("model", MODELS)
def test_a_stop_word_that_straddles_tokens_ends_the_text_before_it(client: Client, model: str) -> None:
    for prompt in PROMPTS[:3]:
        request = CompletionRequest(prompt, max_tokens=60)
        with client.stream(request, model) as stream:
            pieces = [chunk.text for chunk in stream]
        full = "".join(pieces)
        # From the middle of one chunk to the middle of the next, free of replaced bytes.
        lengths = np.cumsum([len(piece) for piece in pieces])
        words = (full[end - 1 : end + 1] for end in lengths[len(lengths) // 2 :])
        word = next(word for word in words if len(word) == 2 and "\ufffd" not in word)
        stopping = CompletionRequest(prompt, max_tokens=60, stop_words=("never there", word))
        whole = client.generate(stopping, model)
        with client.stream(stopping, model) as stream:
            chunks = list(stream)
        assert whole.text == full[: full.index(word)]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert whole.finish_reason == chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_gives_the_tokens_of_the_target_alone(server: Server, temperature: float) -> None:
    with grpc_client(server) as client:
        accepted = 0
        for seed, prompt in enumerate(PROMPTS[:3]):
            request = CompletionRequest(prompt, max_tokens=40, temperature=temperature, seed=seed)
            expected = token_ids(client.generate(request, "generate_target"))
            for length in (None, 0, 1, MAX_DRAFT_LEN):
                asked = CompletionRequest(
                    prompt, max_tokens=40, temperature=temperature, seed=seed, num_draft_tokens=length
                )
                generation = client.generate(asked, "generate")
                assert token_ids(generation) == expected
                accepted += generation.total_accepted_draft_tokens
        assert accepted > 0


def test_many_requests_at_once_get_the_tokens_they_get_alone(server: Server) -> None:
    prompts = [f"{prompt}{number}" for number in range(2) for prompt in PROMPTS]
    requests = [CompletionRequest(prompt, max_tokens=40) for prompt in prompts]
    with grpc_client(server) as client:
        alone = [token_ids(client.generate(request, "generate_target")) for request in requests]

    def ask(request: CompletionRequest) -> list[int]:
        with grpc_client(server) as client:
            return token_ids(client.stream(request).result())

    with ThreadPoolExecutor(len(requests)) as pool:
        assert list(pool.map(ask, requests)) == alone


def test_the_loop_gives_the_same_through_bls(server: Server, bls_server: Server) -> None:
    with grpc_client(server) as in_process, grpc_client(bls_server) as bls:
        for prompt in PROMPTS:
            request = CompletionRequest(prompt, max_tokens=40, stop_words=("zzzz",))
            expected = in_process.generate(request)
            for generation in (bls.generate(request), bls.stream(request).result()):
                assert generation.text == expected.text
                assert generation.accepted_mask == expected.accepted_mask
                assert generation.num_rounds == expected.num_rounds
        with pytest.raises(PromptTooLongError):
            bls.generate(CompletionRequest("x", max_tokens=MAX_SEQ_LEN))


def kserve_inputs(prompt: bytes, max_tokens: int) -> list[Any]:
    values = {
        "text_input": np.array([[prompt]], dtype=np.object_),
        "max_tokens": np.array([[max_tokens]], dtype=np.int32),
    }
    inputs = []
    for name, datatype in (("text_input", "BYTES"), ("max_tokens", "INT32")):
        tensor = tritonclient.grpc.InferInput(name, [1, 1], datatype)
        tensor.set_data_from_numpy(values[name])
        inputs.append(tensor)
    return inputs


@pytest.mark.parametrize("model", MODELS)
def test_kserve_infer_answers_as_generate_does(server: Server, model: str) -> None:
    with http_client(server) as client:
        expected = client.generate(CompletionRequest("def main(", max_tokens=20), model)
    kserve = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
    result = kserve.infer(f"{model}_unary", kserve_inputs(b"def main(", 20))
    assert result.as_numpy("text_output")[0, 0].decode() == expected.text
    assert result.as_numpy("output_ids").ravel().tolist() == token_ids(expected)

    with pytest.raises(InferenceServerException) as refused:
        kserve.infer(f"{model}_unary", kserve_inputs(b"def main(", 0))
    assert isinstance(from_wire(refused.value.message()), InvalidRequestError)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    kserve.close()

    body = {
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["def main("]},
            {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [20]},
        ]
    }
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/{model}_unary/infer"
    reply = httpx.post(url, json=body, timeout=30, trust_env=False)
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert outputs["text_output"] == [expected.text]
    assert outputs["output_ids"] == token_ids(expected)


BAD_BODIES: dict[str, tuple[dict[str, Any] | bytes, type[DraftproofError], str]] = {
    "empty prompt": ({"text_input": "", "max_tokens": 4}, InvalidRequestError, "prompt is empty"),
    "max_tokens of 0": ({"text_input": "x", "max_tokens": 0}, InvalidRequestError, "max_tokens=0"),
    "negative max_tokens": ({"text_input": "x", "max_tokens": -5}, InvalidRequestError, "max_tokens=-5"),
    "max_tokens over the limit": ({"text_input": "x", "max_tokens": 10**6}, PromptTooLongError, "1000000"),
    "prompt too long": ({"text_input": "x " * 600, "max_tokens": 4}, PromptTooLongError, "max_seq_len"),
    "prompt far too long": ({"text_input": "x" * 10**6, "max_tokens": 4}, PromptTooLongError, "1000000"),
    "too many draft tokens": (
        {"text_input": "x", "max_tokens": 4, "num_draft_tokens": MAX_DRAFT_LEN + 1},
        InvalidRequestError,
        f"max_draft_len={MAX_DRAFT_LEN}",
    ),
    "negative draft tokens": (
        {"text_input": "x", "max_tokens": 4, "num_draft_tokens": -1},
        InvalidRequestError,
        "num_draft_tokens=-1",
    ),
    "invalid UTF-8": (b'{"text_input": "caf\xe9", "max_tokens": 4}', InvalidRequestError, "0xe9"),
    "NaN temperature": (
        b'{"text_input": "x", "max_tokens": 4, "temperature": NaN}',
        InvalidRequestError,
        "temperature=nan",
    ),
    "negative temperature": (
        {"text_input": "x", "max_tokens": 4, "temperature": -0.5},
        InvalidRequestError,
        "temperature=-0.5",
    ),
    "top_p of 0": ({"text_input": "x", "max_tokens": 4, "top_p": 0.0}, InvalidRequestError, "top_p"),
    "negative top_k": ({"text_input": "x", "max_tokens": 4, "top_k": -1}, InvalidRequestError, "top_k=-1"),
    "empty stop word": (
        {"text_input": "x", "max_tokens": 4, "stop_words": ["a", ""]},
        InvalidRequestError,
        "stop word",
    ),
    "special token as stop word": (
        {"text_input": "x", "max_tokens": 4, "stop_words": ["<|endoftext|>"]},
        InvalidRequestError,
        "end_id",
    ),
    "too many stop words": (
        {"text_input": "x", "max_tokens": 4, "stop_words": ["a"] * 33},
        InvalidRequestError,
        "at most 32",
    ),
    "misspelt parameter": (
        {"text_input": "x", "max_tokens": 4, "temprature": 0.5},
        InvalidRequestError,
        "did you mean 'temperature'",
    ),
    "deadline passed": (
        {"text_input": "x", "max_tokens": 4, "parameters": {"timeout": 1}},
        RequestTimeoutError,
        "deadline",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_input_gets_its_error_within_a_second_and_harms_nobody(server: Server, name: str) -> None:
    body, kind, words = BAD_BODIES[name]
    request = CompletionRequest("def main(", max_tokens=100)
    with grpc_client(server) as client:
        bystander = client.stream(request)
        began_s = time.monotonic()
        reply = post(server, body)
        seconds = time.monotonic() - began_s
        assert len(bystander.result().output_ids) == 100
    error = from_wire(reply.json()["error"])
    assert type(error) is kind
    assert words in str(error)
    assert "Traceback" not in reply.text
    assert seconds < 1.0


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 4, "stop_words_list": [9, 9, 2, 1]},
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 4, "stop_words_list": [9, -1, 7, -1]},
        {"input_ids": [5], "input_lengths": 7, "request_output_len": 4},
        {"input_ids": [-5], "input_lengths": 1, "request_output_len": 4},
        {"input_ids": [10**6], "input_lengths": 1, "request_output_len": 4},
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 4, "prompt_length": 2},
    ],
)
def test_malformed_tensors_are_refused_by_the_engine_models(server: Server, body: dict[str, Any]) -> None:
    reply = post(server, body, "target")
    assert isinstance(from_wire(reply.json()["error"]), InvalidRequestError), reply.text


def num_free_blocks(server: Server, model: str, engine: str) -> float:
    return read_gauge(server, "draftproof_kv_blocks_free", model=model, engine=engine)


def all_blocks_are_free(server: Server, model: str) -> bool:
    engines = ("draft", "target") if model == "speculative" else ("target",)
    return all(
        num_free_blocks(server, model, engine)
        == read_gauge(server, "draftproof_kv_blocks", model=model, engine=engine)
        for engine in engines
    ) and not read_gauge(server, "draftproof_requests_running", model=model, engine=engines[-1])


def is_busy(server: Server, model: str) -> bool:
    return read_gauge(server, "draftproof_requests_running", model=model) > 0 or not all_blocks_are_free(
        server, model
    )


@pytest.mark.parametrize(
    ("model", "engine_model"), [("generate", "speculative"), ("generate_target", "target")]
)
def test_a_client_that_leaves_a_stream_gives_its_blocks_back(
    client: Client, server: Server, model: str, engine_model: str
) -> None:
    assert wait_until(lambda: all_blocks_are_free(server, engine_model))
    streams = [
        client.stream(CompletionRequest(f"def f{number}(", max_tokens=450), model) for number in range(3)
    ]
    for stream in streams:
        next(stream)
    assert wait_until(lambda: not all_blocks_are_free(server, engine_model))
    began_s = time.monotonic()
    for stream in streams:
        stream.close()
    assert wait_until(lambda: all_blocks_are_free(server, engine_model), timeout_s=3)
    assert time.monotonic() - began_s < 3
    assert client.generate(CompletionRequest("def main(", max_tokens=8), model).text


def test_a_unary_call_that_is_cancelled_gives_its_blocks_back(server: Server) -> None:
    kserve = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
    answered = threading.Event()
    call = kserve.async_infer(
        "generate_unary", kserve_inputs(b"def main(", 480), lambda result, error: answered.set()
    )
    assert wait_until(lambda: is_busy(server, "speculative"))
    call.cancel()
    assert answered.wait(5)
    assert wait_until(lambda: all_blocks_are_free(server, "speculative"), timeout_s=3)
    kserve.close()


def test_a_full_queue_refuses_at_once_and_answers_the_rest(server: Server) -> None:
    num_requests = MAX_BATCH_SIZE + MAX_QUEUE_SIZE + 6

    def ask(number: int) -> tuple[str, float]:
        began_s = time.monotonic()
        with grpc_client(server) as client:
            try:
                generation = client.generate(CompletionRequest(f"def f{number}(", max_tokens=200, end_id=-1))
            except ServerBusyError as error:
                assert f"max_queue_size={MAX_QUEUE_SIZE}" in str(error)
                return "busy", time.monotonic() - began_s
        assert len(generation.output_ids) == 200
        return "answered", time.monotonic() - began_s

    with ThreadPoolExecutor(num_requests) as pool:
        outcomes = list(pool.map(ask, range(num_requests)))
    refused_s = [seconds for outcome, seconds in outcomes if outcome == "busy"]
    assert refused_s
    assert len(outcomes) - len(refused_s) >= MAX_BATCH_SIZE + MAX_QUEUE_SIZE
    assert max(refused_s) < min(seconds for outcome, seconds in outcomes if outcome == "answered")
    assert wait_until(lambda: all_blocks_are_free(server, "speculative"))


def test_a_request_can_be_stopped_by_its_id(server: Server) -> None:
    outcome: dict[str, httpx.Response] = {}
    body = {"id": "mine", "input_ids": [5, 6], "input_lengths": 2, "request_output_len": 480}
    thread = threading.Thread(target=lambda: outcome.update(reply=post(server, body, "speculative")))
    thread.start()
    assert wait_until(lambda: is_busy(server, "speculative"))
    post(server, {**body, "stop": True}, "speculative")
    thread.join(10)
    assert "request_cancelled" in outcome["reply"].text


def test_a_killed_server_leaves_no_client_waiting(render: Callable[[str, str], Path]) -> None:
    server = Server.start(render("tiny-killed", "in_process"), Ports.free())
    try:
        server.wait_ready()
        with grpc_client(server) as grpc, http_client(server) as http:
            streams = [
                client.stream(CompletionRequest("def main(", max_tokens=480)) for client in (grpc, http)
            ]
            for stream in streams:
                next(stream)
            server.process.end(0.0)
            began_s = time.monotonic()
            for stream in streams:
                with pytest.raises(DraftproofError):
                    stream.result()
            assert time.monotonic() - began_s < 10
            assert not grpc.is_ready()
    finally:
        server.stop()


def test_a_server_that_dies_at_start_shows_what_its_log_says(render: Callable[[str, str], Path]) -> None:
    from pipelines.deploy import Ports

    directory = render("tiny-broken", "in_process")
    config = directory / "model_repository" / "target" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('value: { string_value: "128" }', 'value: { string_value: "many" }'))
    assert config.read_text() != text
    server = Server.start(directory, Ports.free())
    with pytest.raises(ServerStartError, match="a parameter of the wrong kind"):
        server.wait_ready()
    assert Server.running(directory) is None
