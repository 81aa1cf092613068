"""Tests with random tensors, ids and parameters: each request gets one typed last response.

Types are those of the models' configurations, which Triton checks itself; shapes and values are arbitrary.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError, RequestCancelledError, RequestTimeoutError, from_wire
from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.triton.backend.gauges import TokenTimes
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.answering import Answering, GenerationModel, TargetAlone
from pipelines.triton.text.model import TextModel
from pipelines.wire.fields import ENGINE_INPUTS, TEXT_INPUTS
from tests.support.examples import examples
from tests.support.fake_triton import FakeRequest, fake_backend
from tests.support.recorded_gauges import RecordedGauges
from tests.support.recording_engine import VOCAB_SIZE, RecordingEngine, make_executor
from tests.unit.triton.test_text_model import EchoEngine, start_text_model

FUZZED = examples(300, derandomize=True)

INTEGERS = st.one_of(
    st.integers(-2, VOCAB_SIZE), st.sampled_from([2**31 - 1, -(2**31), 96, 97, 1024]), st.just(1)
)
REALS = st.one_of(
    st.sampled_from([0.0, 1.0, 0.5, -1.0, 1e-45, 3e38, np.nan, np.inf, -np.inf]), st.floats(-2, 2, width=32)
)
TEXTS = st.one_of(
    st.text(max_size=8).map(str.encode),
    st.binary(max_size=8),
    st.sampled_from([b"", b"x" * 300, b"\xff" * 5000, "☕".encode() * 2000, b"<|endoftext|>", b"\0"]),
)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "INT32": (np.int32, INTEGERS),
    "UINT64": (np.uint64, st.integers(0, 2**64 - 1)),
    "FP32": (np.float32, REALS),
    "BOOL": (np.bool_, st.booleans()),
    "BYTES": (np.object_, TEXTS),
}
SHAPES = st.sampled_from([(), (0,), (1,), (0, 1), (1, 0), (1, 2), (2, 1), (1, 1, 1), (1, 2, 3), (1, 3, 0)])
LIKELY = st.integers(0, 9).map(bool)

IDS = st.one_of(
    st.sampled_from(["", "mine", "request", "mine#1"]), st.text(max_size=85)
)  # as the gateway checks
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
PARAMETERS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"timeout": st.one_of(SCALARS, st.integers(0, 10**8))}),
    st.dictionaries(
        st.one_of(st.sampled_from(["timeout", "temprature", "triton_x", "id"]), st.text(max_size=200)),
        SCALARS,
        max_size=3,
    ),
).map(json.dumps)


def inputs_of(model: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of each input of a model."""
    inputs = TEXT_INPUTS if model == "router" else ENGINE_INPUTS
    return {name: (each.datatype, each.dims) for name, each in inputs.items()}


@st.composite
def arrays(draw: st.DrawFn, kind: str, dims: tuple[int, ...]) -> npt.NDArray[Any]:
    """Draw a tensor of a type, usually with a shape that the configuration allows."""
    dtype, values = KINDS[kind]
    if draw(LIKELY):
        shape = (1, *(draw(st.integers(0, 5)) if dim < 0 else dim for dim in dims))
    else:
        shape = draw(SHAPES)
    size = int(np.prod(shape))
    array = np.empty(size, dtype)
    array[:] = draw(st.lists(values, min_size=size, max_size=size))
    return array.reshape(shape)


@st.composite
def requests(draw: st.DrawFn, model: str, good: dict[str, npt.NDArray[Any]]) -> FakeRequest:
    """Draw a request to a model: partly valid, partly arbitrary."""
    tensors = dict(good) if draw(LIKELY) else {}
    inputs = inputs_of(model)
    for name in draw(st.lists(st.sampled_from(sorted(inputs)), max_size=4, unique=True)):
        tensors[name] = draw(arrays(*inputs[name]))
    timeout_us = draw(st.sampled_from([0, 0, 0, 1, 10**8, 2**64 - 1]))
    return FakeRequest(tensors, draw(IDS), draw(PARAMETERS), ("output_ids",), timeout_us)


def wait_until(condition: Callable[[], bool]) -> bool:
    """Poll for two minutes; return whether the condition became true."""
    deadline_s = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


def check(sent: list[FakeRequest]) -> None:
    for request in sent:
        last = request.sender.wait(120)[-1]
        if last is None or last.error is None:
            continue
        message = last.error.message()
        error = from_wire(message)
        assert isinstance(error, (InvalidRequestError, RequestTimeoutError, RequestCancelledError)), message
        assert "Traceback" not in message and len(message) < 5000
        assert "; " in message, "a message and a remedy"


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    folder = tmp_path_factory.mktemp("text")
    engine = EchoEngine(folder / "engine.sock")
    model = start_text_model(folder, engine.path, max_seq_len=400, max_batch_size=8, max_queue_size=8)
    yield model
    model.close()
    engine.close()


GOOD_TEXT = {"text_input": np.array([[b"def main("]], np.object_), "max_tokens": np.array([[4]], np.int32)}


@FUZZED
@given(sent=st.lists(requests("router", GOOD_TEXT), min_size=1, max_size=3))
def test_a_text_model_answers_anything(text_model: TextModel, sent: list[FakeRequest]) -> None:
    text_model.execute(sent)
    check(sent)
    assert wait_until(lambda: text_model._router.routing.num_open == 0)


@pytest.fixture(scope="module")
def engine_model() -> Iterator[tuple[GenerationModel, Executor]]:
    executor = make_executor(RecordingEngine(64))
    loop = StepLoop((executor,))
    loop.start()
    alone = TargetAlone(executor.vocabulary, executor.config.end_ids, executor.check, executor.generate)
    times = TokenTimes(RecordedGauges())  # type: ignore[arg-type]
    parameters = ModelParameters("target", {}, tuple(inputs_of("target")))
    model = GenerationModel(parameters, fake_backend(), {"": Answering(loop, alone, times)})
    yield model, executor
    model.close()


GOOD_TOKENS = {
    "input_ids": np.array([[3, 1, 4]], np.int32),
    "input_lengths": np.array([[3]], np.int32),
    "request_output_len": np.array([[5]], np.int32),
}


@FUZZED
@given(sent=st.lists(requests("target", GOOD_TOKENS), min_size=1, max_size=3))
def test_an_engine_model_answers_anything(
    engine_model: tuple[GenerationModel, Executor], sent: list[FakeRequest]
) -> None:
    model, executor = engine_model
    model.execute(sent)
    check(sent)
    scheduler = executor.scheduler
    assert wait_until(lambda: not executor.has_work and scheduler.num_free_blocks == scheduler.num_blocks)
