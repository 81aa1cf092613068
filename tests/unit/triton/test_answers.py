"""Tests that a model answers each request from Triton, and refuses before any work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.asyncio_thread import AsyncioThread
from pipelines.client.generation import join_chunks
from pipelines.client.tensors import chunk_from_outputs
from pipelines.errors import (
    InternalError,
    InvalidRequestError,
    RepositoryError,
    RequestCancelledError,
    ServerStartError,
    from_wire,
)
from pipelines.router.router import with_news_only
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.loop import Round
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.gauges import TokenTimes
from pipelines.triton.backend.outputs import engine_outputs, text_outputs
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine import chunks as serving_chunks
from pipelines.triton.engine.answering import Answering, GenerationModel
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.speculative_answerer import counts_so_far
from pipelines.wire.chunk import TOKEN_SOURCES, Chunk
from pipelines.wire.chunk_parts import with_text
from pipelines.wire.messages import EngineRequest
from tests.support.fake_triton import FakeRequest, engine_tensors, fake_backend
from tests.support.recorded_gauges import RecordedGauges


class ScriptedAnswerer:
    """Answers with what a test gives it, and records how each answer ended."""

    vocabulary = Vocabulary((b"a", b"b"))
    end_ids = (0,)
    grammars = None

    def __init__(self, script: Callable[[], AsyncIterator[Chunk]]) -> None:
        self._script = script
        self.was_closed = threading.Event()

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        if request.max_tokens == 13:
            raise InvalidRequestError("unlucky")

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        try:
            async for chunk in self._script():
                yield chunk
        finally:
            self.was_closed.set()


@pytest.fixture
def serve() -> Iterator[Callable[[ScriptedAnswerer], GenerationModel]]:
    models = []

    def start(answerer: ScriptedAnswerer) -> GenerationModel:
        loop = AsyncioThread("requests")
        loop.start()
        parameters = ModelParameters("target", {}, input_names=("input_ids",))
        times = TokenTimes(RecordedGauges())  # type: ignore[arg-type]
        answering = Answering(loop, answerer, times)
        model = GenerationModel(parameters, fake_backend(), {"": answering})
        models.append(model)
        return model

    yield start
    for model in models:
        model.close()


def chunk_of(number: int) -> Chunk:
    return Chunk("", (number,), (False,), "stop" if number == 2 else "", 0.0, 1)


async def three() -> AsyncIterator[Chunk]:
    for number in range(3):
        yield chunk_of(number)


async def for_ever() -> AsyncIterator[Chunk]:
    yield chunk_of(0)
    await asyncio.sleep(3600)


def test_only_the_outputs_that_were_asked_for_are_sent(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3), requested=("output_ids",))
    serve(ScriptedAnswerer(three)).execute([request])
    assert [set(answer.tensors) for answer in request.sender.wait() if answer] == [{"output_ids"}] * 3


@pytest.mark.parametrize(
    "request_made",
    [
        FakeRequest(engine_tensors([1], 13)),
        FakeRequest(engine_tensors([1], 3, temperature=[0.0, 1.0])),
        FakeRequest(engine_tensors([1], 3, num_log_probs=2)),
        FakeRequest(engine_tensors([1], 3, logit_bias_ids=[1], logit_bias_values=[1.0, 2.0])),
        FakeRequest(engine_tensors([1], 3, bad_words_list=[[0], [2]])),
        FakeRequest(engine_tensors([1], 3), parameters='{"inputids": 1}'),
    ],
)
def test_refusals_come_before_any_work(serve: Any, request_made: FakeRequest) -> None:
    answerer = ScriptedAnswerer(three)
    serve(answerer).execute([request_made])
    error = request_made.sender.error
    assert isinstance(from_wire(error.message()), InvalidRequestError)
    assert not answerer.was_closed.is_set()


def test_an_invalid_request_from_triton_is_an_internal_error(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3), parameters="{no json")
    serve(ScriptedAnswerer(three)).execute([request])
    assert type(from_wire(request.sender.error.message())) is InternalError


def test_closing_the_model_answers_what_is_open(serve: Any) -> None:
    model = serve(ScriptedAnswerer(for_ever))
    requests = [FakeRequest(engine_tensors([1], 3)) for _ in range(3)]
    model.execute(requests)
    model.close()
    model.close = lambda: None  # not again by the fixture
    for request in requests:
        assert type(from_wire(request.sender.error.message())) is RequestCancelledError


def test_a_response_that_cannot_be_sent_becomes_an_error_and_ends_the_work(serve: Any) -> None:
    answerer = ScriptedAnswerer(for_ever)
    request = FakeRequest(engine_tensors([1], 3))
    request.sender.broken_sends = 1
    serve(answerer).execute([request])
    assert type(from_wire(request.sender.error.message())) is InternalError
    assert answerer.was_closed.wait(120)


def test_parameters_are_read_strictly() -> None:
    parameters = ModelParameters("target", {"engine_dir": "engines/x", "max_seq_len": "many"})
    assert parameters.path("engine_dir") == Path("engines/x")
    with pytest.raises(RepositoryError, match="has no parameter 'max_batch_size'"):
        parameters.text("max_batch_size")
    with pytest.raises(RepositoryError, match="max_seq_len='many'"):
        parameters.integer("max_seq_len")


def test_a_numpy_with_which_tensors_arrive_empty_is_named(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "__version__", "2.4.0")
    with pytest.raises(ServerStartError, match=r"numpy 2\.4\.0"):
        serve(ScriptedAnswerer(three))


VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
ALWAYS = {"text_output", "output_ids", "sequence_length", "finish_reason"}
OF_DRAFTING = {
    *("accepted_mask", "token_sources", "num_rounds", "total_draft_tokens", "total_accepted_draft_tokens"),
    *("accepted_prediction_tokens", "rejected_prediction_tokens"),
    *("accepted_per_position", "acceptance_rate"),
}
OF_LOG_PROBS = {"output_log_probs", "cum_log_probs", "top_log_prob_ids", "top_log_probs"}
WITH_THE_LAST = {
    "output_seed",
    "cached_prompt_tokens",
    "draft_length",
    *("arm", "fallback_from"),
    "drafted_per_round",
    "accepted_per_round",
}

# The tokens of each round, the number drafted and the number accepted.
ROUNDS = [(b"a", 0, 0), (b"b", 0, 0), (b"cde", 3, 2), (b"f", 2, 0), (b"g", 0, 0), (b"h", 0, 0)]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return each chunk as soon as it may be sent."""
    monkeypatch.setattr(serving_chunks, "CHUNK_INTERVAL_S", 0.0)


def responses(
    rounds: list[tuple[bytes, int, int]], *, drafts: bool = True, log_probs: bool = False
) -> list[Any]:
    """Return the text model's responses to these rounds of the loop, or of the target alone."""
    request = GenerationRequest("r", np.array([1], np.int32), 99, num_log_probs=1 if log_probs else None)
    chunks = ChunkStream(VOCABULARY, request, streaming=True)
    statistics = SpeculationStatistics(4)
    num_drafted_before = 0
    sent = []
    for number, (data, num_drafted, num_accepted) in enumerate(rounds, start=1):
        ids = np.frombuffer(data, np.uint8).astype(np.int32)
        reason = "length" if number == len(rounds) else ""
        outcome = Round(ids, num_drafted, num_accepted, reason, num_drafted)
        statistics.add_round(outcome)
        probs = LogProbs(
            -np.ones(len(ids), np.float32), ids[:, np.newaxis], -np.ones((len(ids), 1), np.float32)
        )
        said = replace(outcome, log_probs=probs if log_probs else None)
        chunk = chunks.push(said if drafts else Output(ids, reason, bool(reason), said.log_probs))
        if chunk is None:
            continue
        if drafts:
            chunk = replace(chunk, counts=counts_so_far(statistics), draft_length="adaptive")
        if drafts and reason:
            drafted, accepted = (tuple(column) for column in list(zip(*rounds, strict=True))[1:])
            chunk = replace(chunk, drafted_per_round=drafted, accepted_per_round=accepted)
        chunk = with_text(chunk, VOCABULARY)
        sent.append(text_outputs(chunk if reason else with_news_only(chunk, num_drafted_before)))
        num_drafted_before = statistics.total_draft_tokens
    return sent


def read(sent: list[Any]) -> list[Chunk]:
    flat = [{name: array.reshape(-1).tolist() for name, array in outputs.items()} for outputs in sent]
    return [chunk_from_outputs(outputs, float(number)) for number, outputs in enumerate(flat)]


def test_responses_carry_the_counts_where_something_was_drafted_and_at_the_end() -> None:
    sent = [set(outputs) for outputs in responses(ROUNDS)]
    drafted = ALWAYS | OF_DRAFTING
    last = ALWAYS | OF_DRAFTING | OF_LOG_PROBS | WITH_THE_LAST
    assert sent == [ALWAYS, ALWAYS, drafted, drafted, ALWAYS, last]


def test_while_nothing_is_drafted_a_response_is_as_that_of_the_target_alone() -> None:
    alone = responses(ROUNDS, drafts=False)
    assert [set(outputs) for outputs in alone[:-1]] == [ALWAYS] * 5
    assert not set(alone[-1]) & OF_DRAFTING


def test_the_client_reads_the_whole_answer_from_them() -> None:
    generation = join_chunks(read(responses(ROUNDS)), 0.0, streamed=True)
    assert generation.text == "abcdefgh"
    assert (generation.num_rounds, generation.total_draft_tokens) == (6, 5)
    assert generation.total_accepted_draft_tokens == 2
    assert generation.accepted_mask == (False, False, True, True, False, False, False, False)
    sources = [source for chunk in read(responses(ROUNDS)) for source in chunk.token_sources]
    assert [TOKEN_SOURCES[source] == "grammar" for source in sources] == [*generation.accepted_mask]
    assert generation.drafted_per_round == (0, 0, 3, 2, 0, 0)
    assert generation.draft_length == "adaptive"


def test_the_target_alone_counts_no_rounds() -> None:
    generation = join_chunks(read(responses(ROUNDS, drafts=False)), 0.0, streamed=True)
    assert (generation.num_rounds, generation.accepted_mask, generation.drafted_per_round) == (0, (), ())


@pytest.mark.parametrize("character", ["\u2615", "\xe9"])
def test_a_response_that_held_rounds_back_counts_them(character: str) -> None:
    data = character.encode()
    # The bytes of one character leave together.
    rounds = [(b"a", 0, 0), (data[:1], 1, 0), (data[1:], 2, len(data) - 2), (b"b", 0, 0)]
    generation = join_chunks(read(responses(rounds)), 0.0, streamed=True)
    assert generation.text == f"a{character}b"
    assert (generation.num_rounds, generation.total_draft_tokens) == (4, 3)
    assert generation.drafted_per_round == (0, 1, 2, 0)


def test_scores_of_a_prompt_come_once_and_empty_with_the_last_response() -> None:
    """As long as a request asks for them, a client finds the tensors at the end."""
    first = Chunk("a", (97,), (False,), "", 0.0, 1, prompt_log_probs=(-1.0,), scores_prompt=True)
    last = replace(first, finish_reason="length", prompt_log_probs=())
    names = {"prompt_log_probs", "prompt_top_log_prob_ids", "prompt_top_log_probs"}
    assert names <= text_outputs(first).keys() and names <= text_outputs(last).keys()
    assert text_outputs(last)["prompt_log_probs"].size == 0
    middle = replace(first, prompt_log_probs=())
    assert not names & text_outputs(middle).keys() and names <= engine_outputs(middle).keys()
    assert not names & engine_outputs(replace(middle, scores_prompt=False)).keys()
