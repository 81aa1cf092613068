"""Tests that an answer which broke off continues as if it had not: tokens, text, log probabilities, end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.router.preprocessing import resumed_by_client
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.engine import chunks as serving_chunks
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import with_text
from pipelines.wire.messages import EngineRequest
from tests.support.examples import examples
from tests.support.recording_engine import VOCAB_SIZE, RecordingEngine, request, run
from tests.unit.executor.test_parameters import sampling_params

# The end token spells nothing; four characters are cut in two or three.
_PARTS = b"\xc3|\xa9|\xe2|\x82|\xac|\xf0\x9f|\x98\x80".split(b"|")
VOCABULARY = Vocabulary((b"", b"a", b"b", b"c", b"d", b"e", b"f", b"ab", "é".encode(), *_PARTS))
GRAMMARS = GrammarCompiler(VOCABULARY, VOCAB_SIZE, lambda: lambda text: VOCABULARY.spell(text.encode()))
GUIDES = st.sampled_from(
    [
        Guide("regex", "[a-fé€]*"),
        Guide("regex", "(ab|c[d-f]|é😀)*"),
        Guide("choice", '["abba", "é€😀", "ab"]'),
    ]
)
WORDS = st.lists(
    st.sampled_from([b"ab", b"b", b"ca", "é".encode(), b"\xa9a", b"dd", b"abc"]), max_size=2, unique=True
).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    """Draw a request; words may begin and end inside characters."""
    return request(
        draw(st.lists(st.integers(1, 15), min_size=1, max_size=20)),
        draw(st.integers(1, 30)),
        sampling=draw(sampling_params()),
        stop_words=draw(WORDS),
        bad_words=draw(WORDS),
        num_log_probs=draw(st.sampled_from([None, 0, 3])),
        end_ids=draw(st.sampled_from([(), (0,), (7, 0)])),
        grammar=draw(st.none() | GUIDES.map(GRAMMARS.compile)),
    )


@pytest.fixture(autouse=True, scope="module")
def without_pauses() -> Iterator[None]:
    """Return each chunk as soon as it may be sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_chunks, "CHUNK_INTERVAL_S", 0.0)
        yield


def server() -> tuple[Executor, Executor]:
    """Return draft and target of a server that has answered nothing yet."""
    limits = ExecutorLimits(
        max_batch_size=8, max_num_tokens=32, max_seq_len=96, max_queue_size=16, num_kv_blocks=64
    )
    engines = (RecordingEngine(64, salt=1, agreement=11, role="draft"), RecordingEngine(64))
    draft, target = (Executor(engine, VOCABULARY, limits) for engine in engines)
    return draft, target


def chunks_of(asked: GenerationRequest, draft_length: int) -> list[Chunk]:
    """Answer a request on a new server as the model ``speculative`` does, streamed."""
    draft, target = server()
    stream = ChunkStream(VOCABULARY, asked, streaming=True)

    async def rounds() -> AsyncIterator[Chunk]:
        async for part in speculate(
            asked, draft.complete, target.complete, FixedDraftLength(draft_length), stream=target.generate
        ):
            chunk = stream.push(part)
            if chunk is not None:
                yield chunk

    async def everything() -> list[Chunk]:
        return [chunk async for chunk in rounds()]

    return run([draft, target], everything)


def resumed_request(whole: GenerationRequest, output_ids: list[int]) -> GenerationRequest:
    """Return the request that ``resume_output_ids`` makes of a whole one."""
    asked = EngineRequest(
        tuple(whole.input_ids.tolist()), whole.max_tokens, sampling=whole.sampling, stop=whole.stop_words
    )
    made = resumed_by_client(asked, tuple(output_ids), VOCABULARY)
    return replace(
        whole,
        input_ids=np.array(made.input_ids, np.int32),
        prompt_length=made.prompt_length,
        max_tokens=made.max_tokens,
    )


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.output_ids]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(with_text(chunk, VOCABULARY).text for chunk in chunks)


def log_probs_of(chunks: list[Chunk]) -> list[Any]:
    """Return the log probability of each token, and the alternatives, exactly."""
    values = [value for chunk in chunks for value in chunk.log_probs]
    return [*map(repr, values), *(repr(each) for chunk in chunks for each in chunk.top_log_probs)]


def answered(ask: Callable[[], list[Chunk]]) -> list[Chunk] | None:
    """Return an answer; None if bad words and the grammar forbid every token somewhere."""
    try:
        return ask()
    except InvalidRequestError as error:
        assert "forbids every token" in str(error)
        return None


@examples(200)
@given(whole=requests(), lengths=st.tuples(st.integers(0, 6), st.integers(0, 6)), data=st.data())
def test_the_rest_is_the_same_after_every_chunk(
    whole: GenerationRequest, lengths: tuple[int, int], data: st.DataObject
) -> None:
    """The draft length differs between the servers."""
    uncut = answered(lambda: chunks_of(whole, lengths[0]))
    if uncut is None:
        return
    num_kept = data.draw(st.integers(0, len(uncut) - 1), label="chunks before the failure")
    kept = uncut[:num_kept]
    rest = chunks_of(resumed_request(whole, ids_of(kept)), lengths[1])
    assert ids_of(kept) + ids_of(rest) == ids_of(uncut)
    assert text_of(kept) + text_of(rest) == text_of(uncut)
    assert log_probs_of([*kept, *rest]) == log_probs_of(uncut)
    assert rest[-1].finish_reason == uncut[-1].finish_reason


@examples(200)
@given(whole=requests(), data=st.data())
def test_after_any_tokens_the_rest_is_equal_or_refused(whole: GenerationRequest, data: st.DataObject) -> None:
    uncut = answered(lambda: chunks_of(whole, 3))
    if uncut is None or not ids_of(uncut):
        return
    num_kept = data.draw(st.integers(0, len(ids_of(uncut)) - 1), label="tokens before the failure")
    known = ids_of(uncut)[:num_kept]
    while True:
        try:
            asked = resumed_request(whole, known)
            break
        except InvalidRequestError as error:
            assert "ends inside a character or a possible stop word" in str(error)
            assert len(known) not in np.cumsum([len(chunk.output_ids) for chunk in uncut])
            known = known[:-1]
    rest = chunks_of(asked, 3)
    text = VOCABULARY.join(known).decode("utf-8", "replace")
    assert known + ids_of(rest) == ids_of(uncut)
    assert text + text_of(rest) == text_of(uncut)


@pytest.mark.parametrize(
    ("output_ids", "changes", "words"),
    [
        ([1, 2, 3], {"max_tokens": 3}, "nothing is left of the answer"),
        ([1, 9], {}, "ends inside a character or a possible stop word, with the last 1 of 2 tokens"),
        (
            [3, 4, 1],
            {"stop_words": (b"abc",)},
            "ends inside a character or a possible stop word, with the last 1",
        ),
        (
            [3, 7, 3],
            {"stop_words": (b"bc",)},
            "the answer is complete: the 3 tokens of resume_output_ids contain a stop word",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(
    output_ids: list[int], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        resumed_request(replace(request([1, 2]), **changes), output_ids)
    assert refused.value.remedy
