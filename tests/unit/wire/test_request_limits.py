"""Tests of the limits on requests, which are refused before any work is done."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

from pipelines.errors import InvalidRequestError, RequestTimeoutError, ServerBusyError
from pipelines.speculation.sampling.params import MAX_LOGIT_BIASES, SamplingParams
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind
from pipelines.triton.backend.header import (
    MAX_PARAMETERS_BYTES,
    MAX_TIMEOUT_US,
    Header,
    read_header,
    server_key,
)
from pipelines.triton.backend.inputs import read_id, read_logit_bias
from pipelines.triton.backend.outputs import text_tensor
from pipelines.triton.backend.word_list import unpack_words
from pipelines.wire.admission import Admission
from pipelines.wire.request import MAX_ID_BYTES
from tests.support.fake_triton import FakeRequest, engine_tensors

KNOWN = ("temperature", "top_k")
VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)))


def header_of(parameters: Any = None, request_id: str = "", timeout_us: int = 0) -> Header:
    text = json.dumps(parameters) if parameters is not None else ""
    return read_header(FakeRequest({}, request_id, text, timeout_us=timeout_us), KNOWN, server_key())


def refused(*args: Any, **others: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        header_of(*args, **others)
    error = caught.value
    assert error.message and error.remedy
    assert len(str(error)) < 1000
    return str(error)


def test_a_parameter_that_nothing_uses_is_refused_with_the_nearest_name() -> None:
    assert header_of() == Header("", 0)
    transport = {"id": "a", "timeout": 50, "triton_enable_empty_final_response": True, "priority": 1}
    assert header_of(transport, "a") == Header("a", 50)
    assert "did you mean 'temperature'" in refused({"temprature": 1.0})
    assert "repetition_penalty" in refused({"repetition_penalty": 1.2})


@pytest.mark.parametrize("name", ["x" * 10_000, "☕" * 1000, "temperature" * 100])
def test_an_unknown_name_is_quoted_in_short(name: str) -> None:
    text = refused({name: 1})
    assert name[:80] in text and name[:81] not in text


def test_parameters_are_bounded_together() -> None:
    assert str(MAX_PARAMETERS_BYTES) in refused({f"triton_{number}": number for number in range(10_000)})
    assert str(MAX_PARAMETERS_BYTES) in refused({"triton_" + "x" * 10**6: 1})
    assert str(MAX_PARAMETERS_BYTES) in refused({"sequence_id": "x" * 10**6})


@pytest.mark.parametrize(
    "timeout", ['"1"', "0.5", "1.0", "1e3", "-1", "true", "null", "[1]", "NaN", "-Infinity", str(2**70)]
)
def test_a_timeout_that_is_none_is_refused(timeout: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no whole number of microseconds"):
        read_header(FakeRequest({}, "", f'{{"timeout": {timeout}}}'), KNOWN, server_key())


def test_a_negative_timeout_of_grpc_arrives_as_a_huge_one_and_is_refused() -> None:
    assert "timeout=18446744073709551615" in refused(timeout_us=2**64 - 1)
    assert f"timeout={MAX_TIMEOUT_US + 1}" in refused({"timeout": MAX_TIMEOUT_US + 1})


@pytest.mark.parametrize("timeout", [1, 10_000_000, MAX_TIMEOUT_US])
def test_a_timeout_is_microseconds_in_either_place(timeout: int) -> None:
    assert header_of({"timeout": timeout}).timeout_us == header_of(timeout_us=timeout).timeout_us == timeout


@pytest.mark.parametrize("name", ["session_id", "arm"])
def test_names_are_bounded_in_bytes_and_must_be_text(name: str) -> None:
    assert read_id({}, name) == ""
    assert read_id({name: text_tensor("☕")}, name) == "☕"
    assert read_id({name: text_tensor(b"x" * MAX_ID_BYTES)}, name) == "x" * MAX_ID_BYTES
    with pytest.raises(InvalidRequestError, match=f"the {name} has 1000000 bytes, more than 256"):
        read_id({name: text_tensor(b"\xff" * 10**6)}, name)
    with pytest.raises(InvalidRequestError, match=f"{name} is not valid UTF-8"):
        read_id({name: text_tensor(b"\xff")}, name)
    with pytest.raises(InvalidRequestError, match=r"has the shape \[1, 0\], not \[1, 1\]"):
        read_id({name: np.empty((1, 0), np.object_)}, name)


def test_a_bias_is_bounded_and_read_no_further() -> None:
    def bias(num: int) -> SamplingParams:
        tensors = engine_tensors([1], 1, logit_bias_ids=range(num), logit_bias_values=[1.0] * num)
        return SamplingParams(logit_bias=read_logit_bias(tensors))

    bias(MAX_LOGIT_BIASES).validate(10**6)
    with pytest.raises(InvalidRequestError, match="1025 entries, more than 1024"):
        bias(10**6).validate(10**6)


def test_a_word_list_is_bounded_before_it_is_read_and_quoted_in_short() -> None:
    with pytest.raises(InvalidRequestError, match="1000000 columns are more than 8192"):
        unpack_words(np.zeros((2, 10**6), np.int32), VOCABULARY, WordKind.STOP)
    with pytest.raises(InvalidRequestError) as caught:
        unpack_words(np.tile(np.array([[65], [8192]], np.int32), 8000), VOCABULARY, WordKind.BAD)
    assert len(str(caught.value)) < 500


def test_admission_is_first_come_first_served_and_bounded() -> None:
    async def scenario() -> list[str]:
        admission = Admission(max_running=1, max_waiting=2)
        order: list[str] = []
        release = asyncio.Event()

        async def work(name: str) -> None:
            async with admission.slot():
                order.append(name)
                await release.wait()

        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(0)
        assert (admission.num_running, admission.num_waiting) == (1, 2)
        with pytest.raises(ServerBusyError, match="max_queue_size=2"):
            async with admission.slot():
                pass
        release.set()
        await asyncio.gather(*tasks)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        return order

    assert asyncio.run(scenario()) == ["a", "b", "c"]


async def test_leaving_the_queue_frees_its_place() -> None:
    admission = Admission(max_running=1, max_waiting=4)
    async with admission.slot():
        waiting = [asyncio.create_task(_take(admission)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(RequestTimeoutError):
            async with admission.slot(deadline_s=time.monotonic() - 1):
                pass
        await asyncio.sleep(0)
        assert admission.num_waiting == 2
    await asyncio.gather(*waiting[1:])
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def test_a_place_given_in_the_moment_of_cancellation_goes_on_to_the_next() -> None:
    admission = Admission(max_running=1, max_waiting=3)
    first = admission.slot()
    await first.__aenter__()
    waiting = [asyncio.create_task(_take(admission)) for _ in range(2)]
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)
    waiting[0].cancel()
    await asyncio.wait_for(waiting[1], 1)
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def _take(admission: Admission) -> None:
    async with admission.slot():
        await asyncio.sleep(0)
