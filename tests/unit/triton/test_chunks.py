"""Tests of turning tokens into chunks: what is withheld, and what is released together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.loop import Round
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import StopWordMatcher
from pipelines.triton.engine import chunks as serving_chunks
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import with_text

# Token i spells byte i; then some longer ones, one that ends inside a character, and a special one.
WORDS = (b"def ", b"return", b" caf\xc3", b"\xa9!", "☕".encode(), b"")
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), *WORDS))
DEF, RETURN, HALF_CAFE, CAFE_END, CUP, SPECIAL = range(256, 262)
VOCAB_SIZE = len(VOCABULARY.bytes_of)


@pytest.fixture(autouse=True, scope="module")
def without_pauses() -> Iterator[None]:
    """Return each chunk as soon as it may be sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_chunks, "CHUNK_INTERVAL_S", 0.0)
        yield


def request_of(**others: Any) -> GenerationRequest:
    sampling = SamplingParams(min_tokens=others.pop("min_tokens", 0), seed=2**64 - 1)
    return GenerationRequest("r1", np.array([1], np.int32), 99, sampling=sampling, **others)


def output_of(ids: list[int], first_position: int, request: GenerationRequest) -> Output:
    """Return an engine's output whose log probabilities identify their token and position."""
    log_probs = None
    positions = np.arange(first_position, first_position + len(ids), dtype=np.float32)
    if request.num_log_probs is not None:
        top_ids = np.tile(np.array(ids, np.int32)[:, np.newaxis], request.num_log_probs)
        log_probs = LogProbs(-positions / 3, top_ids, top_ids.astype(np.float32))
    return Output(np.array(ids, dtype=np.int32), "", False, log_probs)


def stream_of(request: GenerationRequest, *, streaming: bool = True) -> ChunkStream:
    return ChunkStream(VOCABULARY, request, streaming=streaming)


def chunks_of(
    rounds: list[list[int]], request: GenerationRequest, *, streaming: bool, num_accepted: int | None = None
) -> list[Chunk]:
    """Return the chunks of the target alone, or of a pair some of whose tokens were accepted."""
    stream = stream_of(request, streaming=streaming)
    chunks = []
    position = 0
    for number, ids in enumerate(rounds, start=1):
        output = output_of(ids, position, request)
        position += len(ids)
        if number == len(rounds):
            output = Output(output.token_ids, "length", True, output.log_probs)
        said: Output | Round = output
        if num_accepted is not None:
            accepted = min(num_accepted, len(ids))
            said = Round(
                output.token_ids,
                accepted,
                accepted,
                output.finish_reason,
                num_by_model=accepted,
                log_probs=output.log_probs,
            )
        chunk = stream.push(said)
        if chunk is not None:
            chunks.append(chunk)
    return chunks


def text_of(chunk: Chunk) -> str:
    return with_text(chunk, VOCABULARY).text


def as_an_engine_ends(rounds: list[list[int]], request: GenerationRequest) -> list[list[int]]:
    """Return the rounds up to the token that completes a stop word, where the executor ends the output."""
    matcher = StopWordMatcher(request.stop_words, VOCABULARY)
    kept: list[list[int]] = []
    num_output = 0
    for ids in rounds:
        kept.append([])
        for token_id in ids:
            kept[-1].append(token_id)
            num_output += 1
            if num_output > request.sampling.min_tokens and matcher.push(token_id):
                return kept
    return kept


ROUNDS = st.lists(
    st.lists(st.sampled_from([*range(0, 256, 3), *b"return", *range(256, 262)]), max_size=6), min_size=1
)
STOP_WORDS = st.sampled_from([(), (b"return",), ("☕!".encode(), b"f\xc3\xa9"), (b"r", b"et")])


@given(ROUNDS, STOP_WORDS, st.integers(0, 12), st.sampled_from([None, 0, 3]))
def test_streamed_chunks_join_to_the_whole(
    rounds: list[list[int]], stop_words: tuple[bytes, ...], min_tokens: int, num_log_probs: int | None
) -> None:
    request = request_of(stop_words=stop_words, min_tokens=min_tokens, num_log_probs=num_log_probs)
    kept = as_an_engine_ends(rounds, request)
    streamed = chunks_of(kept, request, streaming=True)
    (whole,) = chunks_of(kept, request, streaming=False)
    assert "".join(map(text_of, streamed)) == text_of(whole)
    assert [chunk.finish_reason for chunk in streamed] == [""] * (len(streamed) - 1) + ["length"]
    assert streamed[-1].sequence_length == whole.sequence_length == sum(map(len, kept))
    for name in ("output_ids", "log_probs", "top_log_probs"):
        assert tuple(each for chunk in streamed for each in getattr(chunk, name)) == getattr(whole, name), (
            name
        )
    assert streamed[-1].cum_log_prob == whole.cum_log_prob  # bit by bit
    if num_log_probs is not None:
        for chunk in streamed:
            assert len(chunk.log_probs) == len(chunk.output_ids)
            if num_log_probs:
                ids = [[token_id for token_id, _ in each] for each in chunk.top_log_probs]
                assert ids == [[i] * num_log_probs for i in chunk.output_ids]


@given(ROUNDS, STOP_WORDS.filter(bool), st.integers(0, 12))
def test_text_is_cut_only_at_stop_words_that_begin_after_the_least_tokens(
    rounds: list[list[int]], stop_words: tuple[bytes, ...], min_tokens: int
) -> None:
    request = request_of(stop_words=stop_words, min_tokens=min_tokens)
    kept = as_an_engine_ends(rounds, request)
    ids = [token_id for part in kept for token_id in part]
    (whole,) = chunks_of(kept, request, streaming=False)
    before, after = VOCABULARY.join(ids[:min_tokens]), VOCABULARY.join(ids[min_tokens:])
    starts = [start for word in stop_words if (start := after.find(word)) >= 0]
    assert whole.text_length == len(before) + min(starts, default=len(after))


def test_a_chunk_waits_for_the_end_of_a_character_and_of_a_possible_stop_word() -> None:
    rounds = [[DEF, HALF_CAFE], [CAFE_END, ord("r"), ord("e")], [ord("x"), CUP], [ord("!")]]
    request = request_of(stop_words=(b"return",), num_log_probs=0)
    streamed = chunks_of(rounds, request, streaming=True)
    assert [text_of(chunk) for chunk in streamed] == ["def ", " café!", "rex☕", "!"]
    # Log probabilities and sources travel with their tokens, withheld or not.
    thirds = [np.array(chunk.log_probs) * -3 for chunk in streamed]
    assert [np.round(part).tolist() for part in thirds] == [[0], [1, 2], [3, 4, 5, 6], [7]]
    of_a_pair = chunks_of(rounds, request, streaming=True, num_accepted=1)
    sources = [chunk.token_sources for chunk in of_a_pair]
    assert sources == [(1,), (0, 1), (0, 0, 1, 0), (1,)]
    assert [chunk.accepted_mask for chunk in of_a_pair] == [tuple(map(bool, each)) for each in sources]


def test_nothing_waits_for_a_stop_word_that_may_not_begin_yet() -> None:
    rounds = [[DEF, ord("r"), ord("e")], [ord("t")], [ord("r"), ord("e")], [ord("x")]]
    streamed = chunks_of(rounds, request_of(stop_words=(b"return",), min_tokens=4), streaming=True)
    assert [text_of(chunk) for chunk in streamed] == ["def re", "t", "rex"]


def test_an_output_that_ends_at_once_is_one_empty_chunk() -> None:
    (chunk,) = chunks_of([[]], request_of(), streaming=True)
    assert (chunk.output_ids, chunk.text_length, chunk.finish_reason) == ((), 0, "length")


def test_between_the_first_and_the_last_chunk_lies_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(serving_chunks, "CHUNK_INTERVAL_S", 0.02)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    request = request_of(num_log_probs=0)
    stream = stream_of(request)
    sent = []
    for position in range(10):
        chunk = stream.push(output_of([ord("a") + position], position, request))
        sent.append(chunk and text_of(chunk))
        now_s += 0.007
    assert sent == ["a", None, None, "bcd", None, None, "efg", None, None, "hij"]
    last = stream.push(Output(np.array([ord("!")], np.int32), "length", True, None, None))
    assert last is not None and text_of(last) == "!" and last.sequence_length == 11


def test_the_cached_tokens_of_a_prompt_are_those_that_the_first_round_found() -> None:
    request = request_of()
    stream = stream_of(request)
    found = (replace(output_of([65], place, request), num_cached=num) for place, num in ((0, 4), (1, 7)))
    chunks = [stream.push(output) for output in found]
    assert [chunk.num_cached for chunk in chunks if chunk] == [4, 4]
