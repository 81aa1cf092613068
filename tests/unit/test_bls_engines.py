"""A request that goes to another model arrives there as it was, and so does the answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from pipelines.serving.bls_engines import BlsEngine
from pipelines.serving.chunks import ChunkStream
from pipelines.serving.contract import parse_call
from pipelines.serving.engine_model import response_tensors
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling_params import SamplingParams
from pipelines.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)))

OWN_ENDS = (0, 5)
PLAIN = GenerationRequest("r", np.array([1, 2, 3], np.int32), 4, prompt_length=3, end_ids=OWN_ENDS)
ENDLESS = GenerationRequest("r", np.array([1, 2, 3], np.int32), 4, prompt_length=3)
FULL = GenerationRequest(
    "r",
    np.array([1, 2, 3], np.int32),
    4,
    prompt_length=2,
    draft_input_ids=np.array([7, 8], np.int32),
    draft_logits=np.arange(6, dtype=np.float32).reshape(2, 3),
    sampling=SamplingParams(0.5, 3, 0.25, 0.125, 1.5, -0.5, 2.0, 1, ((9, -100.0), (4, 0.5)), 2**64 - 1),
    end_ids=(11,),
    stop_words=(b"stop", "☕".encode()),
    bad_words=(b"bad",),
    num_log_probs=2,
    return_generation_logits=True,
    independent_noise=True,
)


class FakeWire:
    """Takes a request as the model would and answers with the outputs that were asked for."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.asked_outputs: set[str] = set()

    async def call(
        self, model_name: str, inputs: dict[str, Any], output_names: Iterable[str], **others: Any
    ) -> list[dict[str, Any]]:
        self.asked_outputs = set(output_names)
        assert all(array.shape[0] == 1 for array in inputs.values()), "Triton wants the batch dimension"
        self.call_made = parse_call(inputs, others["request_id"], VOCABULARY, OWN_ENDS)
        chunk = ChunkStream(VOCABULARY, self.call_made.request, streaming=False).push(self._output)
        assert chunk is not None
        tensors = response_tensors(chunk, self.call_made)
        return [{name: tensors[name] for name in self.asked_outputs}]


def assert_same(first: Any, second: Any) -> None:
    for field in dataclasses.fields(first):
        ours, theirs = getattr(first, field.name), getattr(second, field.name)
        if dataclasses.is_dataclass(ours):
            assert_same(ours, theirs)
        else:
            assert np.array_equal(ours, theirs) and type(ours) is type(theirs), field.name


@pytest.mark.parametrize("request_made", [PLAIN, ENDLESS, FULL], ids=["plain", "endless", "full"])
def test_requests_and_answers_survive_the_call(request_made: GenerationRequest) -> None:
    ids = np.array([65, 66], np.int32)
    log_probs, logits = None, None
    if request_made is FULL:
        logits = np.arange(512, dtype=np.float32).reshape(2, 256)
        log_probs = LogProbs.of(logits, ids, 2)
    output = Output(ids, "stop", True, log_probs, logits)
    wire = FakeWire(output)
    answered = asyncio.run(BlsEngine("target", wire, VOCABULARY, OWN_ENDS)(request_made))  # type: ignore[arg-type]
    assert_same(wire.call_made.request, request_made)
    assert_same(answered, output)


def test_only_the_outputs_that_are_needed_are_asked_for() -> None:
    wire = FakeWire(Output(np.array([65], np.int32), "", True))
    asyncio.run(BlsEngine("draft", wire, VOCABULARY, OWN_ENDS)(PLAIN))  # type: ignore[arg-type]
    assert wire.asked_outputs == {"output_ids", "finish_reason"}
