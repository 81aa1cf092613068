"""Tests of parsing tensors into requests, and words in tensors."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.client.tensors import inputs_of
from pipelines.errors import InvalidRequestError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind
from pipelines.triton.backend.inputs import completion_request, engine_request
from pipelines.triton.backend.word_list import pack_words, unpack_words
from pipelines.triton.engine.answering import MAX_PREDICTION_IDS, generation_request
from pipelines.wire.fields import TEXT_INPUTS
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import CompletionRequest
from tests.support.fake_triton import engine_tensors

# Token i spells byte i; then some longer ones, one that ends inside a character, and a special one.
WORDS = (b"def ", b"return", b" caf\xc3", b"\xa9!", "☕".encode(), b"")
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), *WORDS))
DEF, RETURN, HALF_CAFE, CAFE_END, CUP, SPECIAL = range(256, 262)


def parse(tensors: dict[str, Any], timeout_us: int = 0) -> tuple[EngineRequest, GenerationRequest]:
    asked = engine_request(tensors, VOCABULARY, timeout_us=timeout_us)
    return asked, generation_request(asked, "r1", VOCABULARY, (7, 8))


def test_absent_tensors_mean_greedy_whole_and_the_engines_own_end() -> None:
    asked, request = parse(engine_tensors([1, 2, 3], 5, seed=0))
    assert request.input_ids.tolist() == [1, 2, 3]
    assert (request.max_tokens, request.num_prompt_tokens, request.end_ids) == (5, 3, (7, 8))
    assert request.sampling == SamplingParams()
    assert (request.stop_words, request.bad_words, request.deadline_s) == ((), (), None)
    assert request.num_log_probs is None
    assert (asked.streaming, asked.num_draft_tokens, asked.use_draft_logits) == (False, None, False)


SAMPLING: dict[str, Any] = {
    **{"temperature": 0.5, "top_k": 4, "top_p": 0.25, "min_p": 0.125, "min_tokens": 3, "seed": 2**64 - 1},
    **{"repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 2.0},
}
NAMED_OTHERWISE = {"top_k": "runtime_top_k", "top_p": "runtime_top_p"}


def test_every_tensor_reaches_the_request() -> None:
    others: dict[str, Any] = {
        **{"prompt_length": 2, "end_id": 11, "num_draft_tokens": 0},
        **{"prediction_ids": [6, 5]},
        **{"stop_words_list": [[DEF, ord("a"), ord("b")], [1, 3, -1]], "bad_words_list": [[RETURN], [1]]},
        **{"logit_bias_ids": [5, 0], "logit_bias_values": [-100.0, 0.5], "num_log_probs": 7},
        **{"return_log_probs": True, "streaming": True, "use_draft_logits": True},
    }
    sampling = {NAMED_OTHERWISE.get(name, name): value for name, value in SAMPLING.items()}
    asked, request = parse(engine_tensors([1, 2, 3], 5, **sampling, **others), timeout_us=1_000_000)
    assert (request.num_prompt_tokens, request.end_ids) == (2, (11,))
    assert (request.stop_words, request.bad_words) == ((b"def ", b"ab"), (b"return",))
    assert request.sampling == SamplingParams(**SAMPLING, logit_bias=((5, -100.0), (0, 0.5)))
    assert (request.num_log_probs, asked.prediction_ids) == (7, (6, 5))
    assert request.deadline_s is not None
    assert 0 < request.deadline_s - time.monotonic() <= 1
    assert (asked.streaming, asked.num_draft_tokens, asked.use_draft_logits) == (True, 0, True)


def test_log_probs_without_alternatives_are_asked_for_without_a_number() -> None:
    assert parse(engine_tensors([1], 5, return_log_probs=True))[1].num_log_probs == 0
    assert parse(engine_tensors([1], 5, return_log_probs=False))[1].num_log_probs is None


def test_a_request_without_seed_gets_one_that_readers_of_json_keep() -> None:
    seeds = {parse(engine_tensors([1], 5))[1].sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed == int(float(seed)) for seed in seeds)


def test_stop_token_ids_end_the_answer_besides_the_end_tokens() -> None:
    request = parse(engine_tensors([1], 5, stop_token_ids=[3, 4]))[1]
    assert request.end_ids[-2:] == (3, 4) and len(request.end_ids) > 2
    assert parse(engine_tensors([1], 5, end_id=-1, stop_token_ids=[3]))[1].end_ids == (3,)
    assert parse(engine_tensors([1], 5, end_id=-1))[1].end_ids == ()


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1] * 33),
        ("prediction_ids", [VOCABULARY.size]),
        ("prediction_ids", [1] * (MAX_PREDICTION_IDS + 1)),
    ],
)
def test_ids_that_are_no_tokens_or_too_many_are_refused(name: str, ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} has {len(ids)} ids"):
        parse(engine_tensors([1], 5, **{name: ids}))


def test_lengths_that_disagree_and_values_that_are_several_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="input_lengths=2"):
        parse({**engine_tensors([1], 5), "input_lengths": np.array([[2]], dtype=np.int32)})
    with pytest.raises(InvalidRequestError, match=r"temperature has the shape \[1, 2\]"):
        parse(engine_tensors([1], 5, temperature=[0.1, 0.2]))


@given(st.lists(st.lists(st.integers(0, 260), min_size=1, max_size=5), max_size=6))
def test_words_survive_the_tensor(words: list[list[int]]) -> None:
    spelled = tuple(VOCABULARY.join(word) for word in words)
    assert unpack_words(pack_words(words), VOCABULARY, WordKind.STOP) == spelled


def test_nvidias_padding_of_ids_with_zero_is_read_too() -> None:
    matrix = np.array([[65, 66, 0, 0], [1, 2, -1, -1]], dtype=np.int32)
    assert unpack_words(matrix, VOCABULARY, WordKind.STOP) == (b"A", b"B")


@pytest.mark.parametrize(
    "matrix",
    [
        *([[65, 66]], [[65, 66], [1, 2], [3, 4]], [[65, 66], [2, 1]], [[65, 66], [1, 1]], [[65, 66], [0, 2]]),
        *([[65, 66], [1, 3]], [[65, 66, 67], [1, -1, 2]], [[65, -1], [2, -1]], [[65, 5000], [2, -1]]),
        *([[SPECIAL], [1]], [[65] * 300, [300, *[-1] * 299]]),
    ],
)
@pytest.mark.parametrize("kind", WordKind)
def test_malformed_words_are_refused_by_their_name(matrix: list[list[int]], kind: WordKind) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        unpack_words(np.array(matrix, dtype=np.int32), VOCABULARY, kind)
    assert refused.value.message.startswith((f"{kind.value}_list is malformed", f"a {kind.one} is empty"))


_DTYPES = {"BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BYTES": np.object_}
FULL = CompletionRequest(
    prompt="naïve ☕",
    max_tokens=5,
    temperature=0.5,
    top_k=4,
    top_p=0.25,
    seed=2**64 - 1,
    stop_words=("a", "☕"),
    end_id=-1,
    num_draft_tokens=0,
    min_p=0.125,
    repetition_penalty=1.5,
    presence_penalty=-0.5,
    frequency_penalty=2.0,
    min_tokens=3,
    bad_words=("b",),
    logit_bias=((5, -100.0), (0, 0.5)),
    guide=("json", ""),
    num_log_probs=0,
    return_prompt_log_probs=True,
    use_draft_logits=True,
    session_id="s",
    cache_salt="c",
    prediction="p",
    arm="control",
    add_special_tokens=False,
    parse_special_tokens=True,
    skip_special_tokens=False,
    resume_output_ids=(7, 8),
    stop_token_ids=(9,),
)


def tensors_of(request: CompletionRequest) -> dict[str, Any]:
    """Return the tensors as Triton hands them to a model."""
    found = {}
    for each in inputs_of(request, streaming=True):
        values = [value.encode() if isinstance(value, str) else value for value in each.values]
        found[each.name] = np.array([values], _DTYPES[each.datatype])
    return found


@pytest.mark.parametrize(
    "request_sent",
    [FULL, CompletionRequest("x"), CompletionRequest(prompt_ids=(1, 2), guide=("regex", "[ab]+"))],
)
def test_every_field_arrives(request_sent: CompletionRequest) -> None:
    assert completion_request(tensors_of(request_sent)) == request_sent


def test_the_client_sends_each_tensor_of_the_table_with_its_type() -> None:
    plain = {field.name: field.default for field in dataclasses.fields(CompletionRequest)}
    same = [name for name, value in plain.items() if getattr(FULL, name) == value]
    assert same == ["prompt_ids"], "the request differs from its defaults everywhere else"
    sent = [
        *inputs_of(dataclasses.replace(FULL, guide=("regex", "a")), streaming=True),
        *inputs_of(CompletionRequest(prompt_ids=(1,)), streaming=True),
    ]
    told = {each.name: (each.datatype, each.is_list) for each in sent}
    assert told == {name: (each.datatype, each.is_list) for name, each in TEXT_INPUTS.items()}
