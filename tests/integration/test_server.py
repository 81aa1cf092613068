"""Tests of the answers of a real Triton server on tiny engines."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.errors import InvalidRequestError, from_wire
from tests.integration.conftest import (
    MAX_DRAFT_LEN,
    grpc_client,
    http_client,
    infer_inputs,
    kserve_inputs,
    text_tensors,
)

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

MODELS = ("generate", "generate_target")
PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__", "naïve café ☕ ", "\n\n\n")


def token_ids(generation: Generation) -> list[int]:
    return list(generation.output_ids)


def test_the_log_of_a_start_has_no_error_on_a_machine_without_a_gpu(server: Server) -> None:
    start, _, rest = server.log.read_text(encoding="utf-8").partition("Started Metrics Service")
    assert "successfully loaded 'speculative'" in start
    assert not re.findall(r"^[EW]\d{4} .*", start, re.MULTILINE) and "evhtp" not in rest


@pytest.mark.parametrize("model", (*MODELS, "ensemble"))
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.long), 1.5])
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


@pytest.mark.parametrize("model", (*MODELS, "ensemble"))
def test_a_stop_word_that_straddles_tokens_ends_the_text_before_it(client: Client, model: str) -> None:
    for prompt in PROMPTS[:3]:
        request = CompletionRequest(prompt, max_tokens=60)
        with client.stream(request, model) as stream:
            pieces = [chunk.text for chunk in stream]
        full = "".join(pieces)
        # Split from one chunk into the next, without replaced bytes; anywhere if the text has too few chunks.
        ends = np.cumsum([len(piece) for piece in pieces])[len(pieces) // 2 :]
        words = (full[end - 1 : end + 1] for end in (*ends, *range(len(full) // 2, len(full))))
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


def test_concurrent_requests_get_the_tokens_they_get_alone(server: Server) -> None:
    prompts = [f"{prompt}{number}" for number in range(2) for prompt in PROMPTS]
    requests = [CompletionRequest(prompt, max_tokens=40) for prompt in prompts]
    with grpc_client(server) as client:
        alone = [token_ids(client.generate(request, "generate_target")) for request in requests]

    def ask(request: CompletionRequest) -> list[int]:
        with grpc_client(server) as client:
            return token_ids(client.stream(request).result())

    with ThreadPoolExecutor(len(requests)) as pool:
        assert list(pool.map(ask, requests)) == alone


@pytest.mark.parametrize("model", MODELS)
def test_kserve_infer_answers_as_generate_does(server: Server, model: str) -> None:
    with http_client(server) as client:
        expected = client.generate(CompletionRequest("def main(", max_tokens=20), model)
    kserve = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
    result = kserve.infer(model, kserve_inputs(b"def main(", 20))
    assert result.as_numpy("text_output")[0, 0].decode() == expected.text
    assert result.as_numpy("output_ids").ravel().tolist() == token_ids(expected)

    streaming = infer_inputs(text_tensors(text_input="def main(", max_tokens=20, stream=True))
    for refused_inputs in (kserve_inputs(b"def main(", 0), streaming):
        with pytest.raises(InferenceServerException) as refused:
            kserve.infer(model, refused_inputs)
        assert isinstance(from_wire(refused.value.message()), InvalidRequestError)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    kserve.close()

    body = {
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["def main("]},
            {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [20]},
        ]
    }
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/{model}/infer"
    reply = httpx.post(url, json=body, timeout=120, trust_env=False)
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert outputs["text_output"] == [expected.text]
    assert outputs["output_ids"] == token_ids(expected)
