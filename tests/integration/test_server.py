"""Tests of the answers of a real Triton server on tiny engines."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server

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
