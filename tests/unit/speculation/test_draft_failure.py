"""Tests of a draft engine that fails or hangs during an answer, which continues with the target alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.executor.engine import Engine
from pipelines.executor.loading import load_engine
from pipelines.executor.step import WARM_UP_TOKEN, Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from pipelines.speculation.watched_draft import WatchedDraft
from tests.support.recording_engine import (
    NUM_BLOCKS,
    RecordingEngine,
    alone,
    make_executor,
    request,
    rounds_of,
    run,
    tokens_of,
)
from tests.support.tiny_engines import build_tiny_pair


class FailingEngine(RecordingEngine):
    """An engine that fails in some of its steps."""

    def __init__(self, failing_steps: range) -> None:
        super().__init__(NUM_BLOCKS, salt=1, agreement=11, role="draft")
        self.failing_steps = failing_steps
        self.num_asked = 0

    def step(self, inputs: Any) -> Any:
        self.num_asked += 1
        if self.num_asked in self.failing_steps:
            raise RuntimeError("the device is gone")
        return super().step(inputs)


def test_an_answer_stays_the_targets_own_while_its_draft_fails_and_speculation_resumes() -> None:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 0.3  # each look at it advances the clock: a pause of a second is over after some rounds
        return now_s

    req = request([3, 1, 4, 1, 5, 9], 40)
    draft = make_executor(FailingEngine(range(6, 9)))
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    watched = WatchedDraft(draft.complete, clock)

    parts = run([draft, target], lambda: rounds_of(req, watched, target, 3))
    assert tokens_of(parts) == alone(req)
    lengths = [part.num_draft_tokens for part in parts]
    assert watched.num_failures == 3
    first_without = lengths.index(0, 1)
    assert 0 < first_without < len(lengths) - 2
    assert any(lengths[first_without:]), "speculation did not resume"
    assert watched.is_available


@pytest.fixture(scope="module")
def draft_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_pair(tmp_path_factory.mktemp("engines"))[0]


def prompt_step(engine: Engine) -> StepInputs:
    chunk = Chunk(np.array([1, 2, 3], np.int32), 0, (1,), is_decode=False, num_logits=1)
    return pack([chunk], engine.config.kv_block_size)


class HangingRequest:
    """A request to OpenVINO whose step never ends."""

    def set_tensor(self, name: str, tensor: Any) -> None:
        raise AssertionError("the step reads its inputs")

    def start_async(self) -> None:
        pass

    def wait_for(self, limit_ms: int) -> bool:
        return False


def test_what_a_step_reads_stays_as_it_is_until_the_step_has_ended(draft_dir: Path) -> None:
    """The runtime reads its inputs in place, even after a step that hangs has been given up."""
    engine = load_engine(EngineFiles(draft_dir), 8)
    inputs = prompt_step(engine)
    expected = engine.step(inputs).copy()
    arrays = {name: (array, array.copy()) for name, array in engine._network._inputs.items()}
    request, engine._network._request = engine._network._request, HangingRequest()
    with pytest.raises(TimeoutError):
        engine.step(inputs)
    assert engine.is_busy
    with pytest.raises(RuntimeError, match="still running"):
        engine.step(dataclasses.replace(inputs, input_ids=inputs.input_ids + 1))
    with pytest.raises(RuntimeError, match="still running"):
        engine.step(pack([WARM_UP_TOKEN], engine.config.kv_block_size))
    for name, (array, content) in arrays.items():
        assert engine._network._inputs[name] is array and np.array_equal(array, content)
    engine._network._request = FailedRequest()
    assert not engine.is_busy
    with pytest.raises(RuntimeError, match="asked to start"):  # a step that has failed is over
        engine.step(inputs)
    engine._network._request = request
    assert np.array_equal(engine.step(inputs), expected)


class FailedRequest(HangingRequest):
    """The same after the step has failed, which is said whenever it is waited for."""

    def wait_for(self, limit_ms: int) -> bool:
        raise RuntimeError("the step failed")

    def start_async(self) -> None:
        raise RuntimeError("asked to start")


def test_a_step_that_hangs_is_given_up(draft_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_engine(EngineFiles(draft_dir), 8)
    inputs = prompt_step(engine)
    expected = engine.step(inputs).copy()
    monkeypatch.setattr("pipelines.executor.engine.STEP_TIMEOUT_S", {"draft": 0.0, "target": 0.0})
    with pytest.raises(TimeoutError, match=r"more than 0\.0 s"):
        for _ in range(200):  # a step of a tiny engine may be done before it is looked at
            engine.step(inputs)
    engine._network._request.wait()
    monkeypatch.undo()
    assert np.array_equal(engine.step(inputs), expected)
