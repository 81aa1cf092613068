"""Tests of the ensemble on a real Triton: it answers as ``generate`` does, and fails as it does.

test_parameters.py and test_server.py test its parameters, streams and stop words with those of the other
models, test_tensorrt_llm.py on TensorRT-LLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    PromptTooLongError,
    ServerUnavailableError,
)
from pipelines.triton.supervision.guard import find_model_processes
from tests.integration.conftest import (
    MAX_SEQ_LEN,
    grpc_client,
    http_client,
    kserve_inputs,
    read_gauge,
    stream_infer,
    text_tensors,
    wait_until,
)
from tests.support.ready_server import ready_server

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

STEPS = ("preprocessing", "speculative", "postprocessing", "ensemble_steps")
LONG = CompletionRequest("def main(", max_tokens=480, end_id=-1)


def told(generation: Generation) -> dict[str, object]:
    """Return what an answer contains, except for times, the arm and the division into chunks."""
    times = {"ttft_s", "e2e_latency_s", "draft_lengths", "arm", "fallback_from"}
    return {name: value for name, value in vars(generation).items() if name not in times}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_concurrent_streams_are_those_of_generate_in_text_tokens_and_counts(
    server: Server, temperature: float
) -> None:
    """Random bytes at this temperature split characters and stop words over tokens and rounds."""
    requests = [
        CompletionRequest(
            prompt,
            max_tokens=80,
            temperature=temperature,
            seed=seed,
            stop_words=("zz", "e\n", "ar", "q") if seed % 2 else ("zz", "e\n"),
            num_draft_tokens=4,
            num_log_probs=2,
        )
        for seed, prompt in enumerate(["def main(", "naïve café ☕ ", "\n\n\n", "import os\n"] * 3)
    ]
    with grpc_client(server) as client:
        expected = [client.generate(request) for request in requests]

    def ask(request: CompletionRequest) -> Generation:
        with grpc_client(server) as client:
            return client.stream(request, "ensemble").result()

    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(ask, requests))
    assert [told(answer) for answer in answers] == [told(answer) for answer in expected]
    if temperature:
        assert any("\ufffd" in answer.text or not answer.text.isascii() for answer in answers)
        assert {answer.finish_reason for answer in answers} == {"stop", "length"}


def test_an_error_of_each_step_is_the_one_that_generate_gives(client: Client) -> None:
    refused: dict[str, tuple[CompletionRequest, type[DraftproofError]]] = {
        "first step": (CompletionRequest("x" * 10 * MAX_SEQ_LEN, max_tokens=1), PromptTooLongError),
        "also first": (CompletionRequest("x", max_tokens=4, min_tokens=5), InvalidRequestError),
        "second step": (CompletionRequest("x", max_tokens=MAX_SEQ_LEN), PromptTooLongError),
        "also second": (CompletionRequest("x", max_tokens=4, temperature=-1.0), InvalidRequestError),
    }
    for request, kind in refused.values():
        messages = set()
        for model in ("generate", "ensemble"):
            with pytest.raises(kind) as whole:
                client.generate(request, model)
            with pytest.raises(kind) as streamed, client.stream(request, model) as stream:
                list(stream)
            messages |= {str(whole.value), str(streamed.value)}
        assert len(messages) == 1


def test_a_deadline_in_mid_stream_ends_it_typed_and_frees_its_place(server: Server) -> None:
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/ensemble/generate_stream"
    body = {"text_input": LONG.prompt, "max_tokens": LONG.max_tokens, "end_id": -1, "stream": True}
    # shortened until it falls into the stream
    for timeout_us in (10_000 * 2**number for number in range(10)):
        events = httpx.post(url, json={**body, "timeout": timeout_us}, timeout=120, trust_env=False).text
        assert "draftproof/request_timeout" in "".join(events.splitlines()[-2:]), events
        if "text_output" in events:
            break
    assert "text_output" in events
    assert is_idle(server)
    with http_client(server) as client:
        assert client.generate(CompletionRequest("x", max_tokens=4), "ensemble").output_ids


def test_what_a_client_left_runs_to_its_end_and_no_further(server: Server) -> None:
    """Triton does not cancel a step that has begun; ``max_tokens`` limits its work."""
    with grpc_client(server) as client:
        began_s = time.monotonic()
        client.generate(LONG, "ensemble")
        whole_s = time.monotonic() - began_s
        for _ in range(3):
            with client.stream(LONG, "ensemble") as stream:
                next(stream)
        assert wait_until(lambda: is_idle(server), timeout_s=20 + 10 * whole_s)
        assert client.generate(CompletionRequest("x", max_tokens=4), "ensemble").output_ids


@pytest.mark.long  # by day tests/unit/gateway/test_supervisor.py
@pytest.mark.parametrize("step", ["ensemble_steps", "speculative"])
def test_a_dead_step_ends_its_requests_typed_and_is_replaced(step: str, render: Callable[..., Path]) -> None:
    """Triton itself would let the requests wait for ever. Afterwards the server still stops cleanly."""
    with ready_server(render("tiny-ensemble")) as server:
        prefix = prefix_of(server.directory)
        with grpc_client(server) as client:
            expected = client.generate(LONG).output_ids
            with client.stream(LONG, "ensemble") as stream:
                next(stream)
                find_model_processes(prefix)[step].kill()
                with pytest.raises((EngineFailedError, ServerUnavailableError)):
                    stream.result()  # which no longer needs the first step
                    while True:
                        client.generate(LONG, "ensemble")
            assert wait_until(server.is_ready)
            assert client.stream(LONG, "ensemble").result().output_ids == expected
            for _ in range(4):
                next(client.stream(LONG, "ensemble"))
        assert server.stop(), "it ended without being killed"
    assert not find_model_processes(prefix)


def is_idle(server: Server) -> bool:
    """Return whether every request and block of the pair is free; wait a little for the gauges."""
    return wait_until(
        lambda: (
            not read_gauge(server, "draftproof_requests_running", model="speculative", engine="pair")
            and not read_gauge(server, "draftproof_requests_waiting", model="speculative", engine="pair")
            and read_gauge(server, "draftproof_kv_blocks_free", model="speculative", engine="draft")
            == read_gauge(server, "draftproof_kv_blocks", model="speculative", engine="draft")
        )
    )


def test_kserve_infer_answers_as_generate_does(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as kserve:
        answers = [
            kserve.infer(model, kserve_inputs(b"def main(", 12)).as_numpy("output_ids").ravel().tolist()
            for model in ("generate", "ensemble")
        ]
    assert answers[0] == answers[1] and len(answers[0]) == 12


def test_clients_ask_the_ensemble_and_not_its_steps(server: Server) -> None:
    url = f"http://127.0.0.1:{server.ports.http}/v2/models"
    body = {"text_input": "x", "max_tokens": 4}
    answered = httpx.post(f"{url}/ensemble/generate", json=body, timeout=120, trust_env=False)
    assert answered.status_code == 200 and answered.json()["text_output"]
    for step in STEPS:
        refused = httpx.post(f"{url}/{step}/generate", json=body, timeout=120, trust_env=False)
        assert "clients cannot use this model" in refused.json()["error"]


def test_steps_take_nvidias_names_from_operators(server: Server) -> None:
    """NVIDIA's ``preprocessing`` and ``postprocessing`` are called in the same way, one after the other."""
    inputs = {**text_tensors(text_input="def main("), **text_tensors(max_tokens=4)}
    renamed = {"QUERY": inputs["text_input"], "REQUEST_OUTPUT_LEN": inputs["max_tokens"]}
    (tokens,) = stream_infer(server, renamed, "preprocessing")
    assert set(tokens) == {
        *("INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "STOP_WORDS_IDS", "BAD_WORDS_IDS")
    }
    spelled = {"TOKENS_BATCH": tokens["INPUT_ID"][None], "TEXT_LENGTH": tokens["REQUEST_INPUT_LEN"] * 0 + 3}
    (text,) = stream_infer(server, spelled, "postprocessing")
    assert text["OUTPUT"].item() == b"def"
