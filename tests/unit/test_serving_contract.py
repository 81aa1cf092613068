"""Tensors to requests, tokens to chunks, text to tokens: all that needs no server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError, PromptTooLongError, RepositoryError, ServerStartError
from pipelines.serving.chunks import Chunk, ChunkStream
from pipelines.serving.contract import is_stop, parse_call, refuse_unknown_parameters
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.postprocessing_model import decode
from pipelines.serving.preprocessing_model import Preprocessing
from pipelines.serving.speculative_model import check_num_draft_tokens
from pipelines.serving.stop_words_list import pack_stop_words, unpack_stop_words
from pipelines.serving.triton_wire import TritonWire
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling_params import SamplingParams
from pipelines.text.vocabulary import Vocabulary
from tests.fake_triton import engine_tensors, fake_backend
from tests.tiny_engines import write_tokenizer

# Token i spells byte i; then some longer ones, one that ends inside a character, and a special one.
WORDS = (b"def ", b"return", b" caf\xc3", b"\xa9!", "☕".encode(), b"")
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), *WORDS))
DEF, RETURN, HALF_CAFE, CAFE_END, CUP, SPECIAL = range(256, 262)


def parse(tensors: dict[str, Any], **others: Any) -> Any:
    return parse_call(tensors, "r1", VOCABULARY, others.pop("end_id", 7), **others)


def test_absent_tensors_mean_greedy_whole_and_the_engines_own_end() -> None:
    call = parse(engine_tensors([1, 2, 3], 5))
    request = call.request
    assert request.input_ids.tolist() == [1, 2, 3]
    assert (request.max_tokens, request.num_prompt_tokens, request.end_id) == (5, 3, 7)
    assert request.sampling == SamplingParams()
    assert (request.stop_words, request.draft_input_ids.size, request.deadline_s) == ((), 0, None)
    assert (call.streaming, call.num_draft_tokens) == (False, None)


def test_every_tensor_reaches_the_request() -> None:
    stop_words = [[DEF, ord("a"), ord("b")], [1, 3, -1]]
    tensors = engine_tensors(
        [1, 2, 3],
        5,
        prompt_length=2,
        draft_input_ids=[8, 9],
        end_id=11,
        stop_words_list=stop_words,
        temperature=0.5,
        runtime_top_k=4,
        runtime_top_p=0.25,
        seed=2**64 - 1,
        streaming=True,
        num_draft_tokens=0,
    )
    call = parse(tensors, timeout_us=1_000_000)
    request = call.request
    assert (request.num_prompt_tokens, request.draft_input_ids.tolist(), request.end_id) == (2, [8, 9], 11)
    assert request.stop_words == (b"def ", b"ab")
    assert request.sampling == SamplingParams(temperature=0.5, top_k=4, top_p=0.25, seed=2**64 - 1)
    assert request.deadline_s is not None
    assert 0 < request.deadline_s - time.monotonic() <= 1
    assert (call.streaming, call.num_draft_tokens) == (True, 0)


def test_a_negative_end_id_means_no_end_token() -> None:
    assert parse(engine_tensors([1], 5, end_id=-1)).request.end_id is None


def test_lengths_that_disagree_and_values_that_are_several_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="input_lengths=2"):
        parse({**engine_tensors([1], 5), "input_lengths": np.array([[2]], dtype=np.int32)})
    with pytest.raises(InvalidRequestError, match="temperature must be one value"):
        parse(engine_tensors([1], 5, temperature=[0.1, 0.2]))


def test_stop_is_a_request_of_its_own_kind() -> None:
    assert is_stop(engine_tensors([1], 1, stop=True))
    assert not is_stop(engine_tensors([1], 1))


@given(st.lists(st.lists(st.integers(0, 260), min_size=1, max_size=5), max_size=6))
def test_stop_words_survive_the_tensor(words: list[list[int]]) -> None:
    spelled = tuple(VOCABULARY.join(word) for word in words)
    assert unpack_stop_words(pack_stop_words(words), VOCABULARY) == spelled


def test_nvidias_padding_of_ids_with_zero_is_read_too() -> None:
    matrix = np.array([[65, 66, 0, 0], [1, 2, -1, -1]], dtype=np.int32)
    assert unpack_stop_words(matrix, VOCABULARY) == (b"A", b"B")


@pytest.mark.parametrize(
    "matrix",
    [
        [[65, 66]],
        [[65, 66], [1, 2], [3, 4]],
        [[65, 66], [2, 1]],
        [[65, 66], [1, 1]],
        [[65, 66], [0, 2]],
        [[65, 66], [1, 3]],
        [[65, 66, 67], [1, -1, 2]],
        [[65, -1], [2, -1]],
        [[65, 5000], [2, -1]],
        [[SPECIAL], [1]],
        [[65] * 300, [300, *[-1] * 299]],
    ],
)
def test_malformed_stop_words_are_refused(matrix: list[list[int]]) -> None:
    with pytest.raises(InvalidRequestError):
        unpack_stop_words(np.array(matrix, dtype=np.int32), VOCABULARY)


def test_a_parameter_that_nothing_uses_is_refused_with_the_nearest_name() -> None:
    known = ("temperature", "top_k")
    assert refuse_unknown_parameters("", known) == 0
    transport = '{"id": "a", "timeout": 50, "triton_enable_empty_final_response": true, "priority": 1}'
    assert refuse_unknown_parameters(transport, known) == 50
    with pytest.raises(InvalidRequestError, match="did you mean 'temperature'"):
        refuse_unknown_parameters('{"temprature": 1.0}', known)
    with pytest.raises(InvalidRequestError, match="repetition_penalty"):
        refuse_unknown_parameters('{"repetition_penalty": 1.2}', known)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"input_ids": np.empty(0, np.int32)}, InvalidRequestError, "prompt is empty"),
        ({"max_tokens": 0}, InvalidRequestError, "max_tokens=0"),
        ({"max_tokens": -1}, InvalidRequestError, "max_tokens=-1"),
        ({"max_tokens": 9}, PromptTooLongError, "max_seq_len=10"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, InvalidRequestError, "temperature"),
        ({"sampling": SamplingParams(top_p=0.0)}, InvalidRequestError, "top_p"),
    ],
)
def test_limits_name_value_and_limit(changes: dict[str, Any], kind: type[Exception], words: str) -> None:
    good = {"request_id": "r", "input_ids": np.array([1, 2], np.int32), "max_tokens": 8}
    GenerationRequest(**good).validate(max_seq_len=10, vocab_size=16)
    with pytest.raises(kind, match=words):
        GenerationRequest(**{**good, **changes}).validate(max_seq_len=10, vocab_size=16)


@pytest.mark.parametrize("length", [-1, 9])
def test_draft_lengths_outside_the_range_are_refused(length: int) -> None:
    check_num_draft_tokens(0, 8)
    check_num_draft_tokens(8, 8)
    with pytest.raises(InvalidRequestError, match=f"num_draft_tokens={length}"):
        check_num_draft_tokens(length, 8)


def text_of(chunk: Chunk) -> str:
    tensors = {
        "output_ids": chunk.token_ids.reshape(1, 1, -1),
        "text_length": np.array([[chunk.text_length]]),
    }
    return decode(tensors, VOCABULARY)


def chunks_of(
    rounds: list[list[int]], stop_words: tuple[bytes, ...], *, streaming: bool, num_accepted: int = 0
) -> list[Chunk]:
    stream = ChunkStream(VOCABULARY, stop_words, streaming=streaming)
    chunks = []
    for number, ids in enumerate(rounds, start=1):
        is_final = number == len(rounds)
        reason = "length" if is_final else ""
        chunk = stream.push(np.array(ids, dtype=np.int32), num_accepted, reason, is_final=is_final)
        if chunk is not None:
            chunks.append(chunk)
    return chunks


@given(
    st.lists(st.lists(st.sampled_from([*range(0, 256, 3), *range(256, 262)]), max_size=6), min_size=1),
    st.sampled_from([(), (b"return",), ("☕!".encode(), b"f\xc3\xa9")]),
)
def test_streamed_chunks_join_to_the_whole(rounds: list[list[int]], stop_words: tuple[bytes, ...]) -> None:
    # As an engine does: the output ends with the token that completes a stop word.
    text, kept = b"", []
    for ids in rounds:
        kept.append([])
        for token_id in ids:
            kept[-1].append(token_id)
            text += VOCABULARY.join([token_id])
            if any(word in text for word in stop_words):
                break
        else:
            continue
        break
    streamed = chunks_of(kept, stop_words, streaming=True)
    (whole,) = chunks_of(kept, stop_words, streaming=False)
    assert "".join(map(text_of, streamed)) == text_of(whole)
    assert [i for chunk in streamed for i in chunk.token_ids.tolist()] == whole.token_ids.tolist()
    assert [chunk.is_final for chunk in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1].sequence_length == whole.sequence_length == sum(map(len, kept))


def test_a_chunk_waits_for_the_end_of_a_character_and_of_a_possible_stop_word() -> None:
    rounds = [[DEF, HALF_CAFE], [CAFE_END, ord("r"), ord("e")], [ord("x"), CUP], [ord("!")]]
    streamed = chunks_of(rounds, (b"return",), streaming=True, num_accepted=1)
    assert [text_of(chunk) for chunk in streamed] == ["def ", " café!", "rex☕", "!"]
    # The mask travels with its tokens, held back or not.
    masks = [chunk.accepted_mask.tolist() for chunk in streamed]
    assert masks == [[True], [False, True], [False, False, True, False], [True]]


def test_a_stop_word_across_rounds_is_cut_off_with_what_follows_it() -> None:
    rounds = [[DEF, ord("r"), ord("e")], [ord("t"), ord("u")], [*b"rn", *b" x"]]
    streamed = chunks_of(rounds, (b"return",), streaming=True)
    assert "".join(map(text_of, streamed)) == "def "
    assert streamed[-1].finish_reason == "length"


def test_an_output_that_ends_at_once_is_one_empty_chunk() -> None:
    (chunk,) = chunks_of([[]], (), streaming=True)
    assert (chunk.token_ids.size, chunk.text_length, chunk.is_final) == (0, 0, True)


@pytest.fixture(scope="module")
def preprocessing(tmp_path_factory: pytest.TempPathFactory) -> Preprocessing:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    values = {"tokenizer_file": str(path), "max_seq_len": "64"}
    return Preprocessing(ModelParameters("preprocessing", values))


def text_inputs(text: bytes, stop_words: list[bytes] | None = None) -> dict[str, Any]:
    inputs = {
        "text_input": np.array([[text]], dtype=np.object_),
        "max_tokens": np.array([[4]], dtype=np.int32),
    }
    if stop_words is not None:
        inputs["stop_words"] = np.array([stop_words], dtype=np.object_)
    return inputs


def test_preprocessing_spells_prompt_and_stop_words(preprocessing: Preprocessing) -> None:
    outputs = preprocessing(text_inputs("naïve ☕".encode(), [b"return", "☕☕".encode()]))
    vocabulary = preprocessing._vocabulary
    assert vocabulary.join(outputs["input_ids"].ravel().tolist()).decode() == "naïve ☕"
    assert outputs["input_lengths"].tolist() == [[outputs["input_ids"].size]]
    words = unpack_stop_words(outputs["stop_words_list"][0], vocabulary)
    assert words == (b"return", "☕☕".encode())
    assert preprocessing(text_inputs(b"x"))["stop_words_list"].tolist() == [[[-1], [-1]]]


@pytest.mark.parametrize(
    ("text", "stop_words", "kind", "words"),
    [
        (b"", None, InvalidRequestError, "prompt is empty"),
        (b"caf\xe9", None, InvalidRequestError, "byte 0xe9 at position 3"),
        (b"x y " * 100, None, PromptTooLongError, "tokens"),
        (b"x" * 100_000, None, PromptTooLongError, "100000 characters"),
        (b"x", [b""], InvalidRequestError, "empty"),
        (b"x", [b"\xff"], InvalidRequestError, "stop_words is not valid UTF-8"),
        (b"x", [b"<|endoftext|>"], InvalidRequestError, "end_id"),
        (b"x", [b"y" * 257], InvalidRequestError, "257 bytes"),
        (b"x", [b"y"] * 33, InvalidRequestError, "at most 32"),
    ],
)
def test_preprocessing_refuses(
    preprocessing: Preprocessing,
    text: bytes,
    stop_words: list[bytes] | None,
    kind: type[Exception],
    words: str,
) -> None:
    with pytest.raises(kind, match=words):
        preprocessing(text_inputs(text, stop_words))


def test_parameters_are_read_strictly() -> None:
    parameters = ModelParameters("target", {"engine_dir": "engines/x", "max_seq_len": "many"})
    assert parameters.path("engine_dir") == Path("engines/x")
    with pytest.raises(RepositoryError, match="lacks a parameter"):
        parameters.text("max_batch_size")
    with pytest.raises(RepositoryError, match="max_seq_len='many'"):
        parameters.integer("max_seq_len")


def test_a_numpy_with_which_tensors_arrive_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "2.4.0")
    with pytest.raises(ServerStartError, match=r"numpy 2\.4\.0"):
        TritonWire(fake_backend())
