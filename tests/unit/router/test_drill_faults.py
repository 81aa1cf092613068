"""Tests that each fault of the drills does what its name says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.router.received_answer import ReceivedAnswer, first_difference
from pipelines.triton.engine.speculative_model import SpeculativeAnswerer
from pipelines.wire.engine_request import parse_call
from pipelines.wire.tensors import scalar_tensor
from tests.drills import candidate_faults as faults
from tests.drills.candidate_faults import FAULTS, install, is_hit
from tests.drills.rollouts import DRILLS
from tests.unit.router.router_world import ANSWER, VOCABULARY, log_probs_of, outputs_of

SHARES = ("SHORT", "OTHER_TEXT", "STOPPING", "CHUNKS", "LOG_PROBS", "PAUSING")


async def answer(self: SpeculativeAnswerer, call: Any) -> AsyncIterator[tuple[dict[str, Any], bool]]:
    """Answer with three bytes per round, as many as are asked for."""
    text = ANSWER[: call.request.max_tokens]
    for begin in range(0, len(text), 3):
        end = min(begin + 3, len(text))
        outputs = outputs_of(text[begin:end], end)
        if call.request.num_log_probs is not None:
            outputs |= log_probs_of(text, begin, end)
        yield outputs, end == len(text)


@pytest.fixture(autouse=True)
def _everybody_is_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SHARES:
        monkeypatch.setattr(faults, f"SHARE_{name}", 1.0)
    monkeypatch.setattr(SpeculativeAnswerer, "answer", answer)


def heard() -> ReceivedAnswer:
    inputs = {
        "input_ids": np.array([[1, 2, 3]], np.int32),
        "request_output_len": scalar_tensor(len(ANSWER), np.int32),
        "return_log_probs": scalar_tensor(True, np.bool_),
    }
    call = parse_call(inputs, "r", VOCABULARY, ())
    found = ReceivedAnswer(VOCABULARY)

    async def listen() -> None:
        async for outputs, _ in SpeculativeAnswerer.answer(object.__new__(SpeculativeAnswerer), call):
            found.add(dict(outputs))

    asyncio.run(listen())
    return found


def test_every_fault_has_a_drill() -> None:
    assert {drill.fault for drill in DRILLS} == {"", *FAULTS}
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)


@pytest.mark.parametrize(
    ("fault", "differs_in"),
    [
        ("short", "tokens"),
        ("other text", "text"),
        ("stopping", "finish_reason"),
        ("wrong chunks", "chunks"),
        ("other log probabilities", "log_probs"),
    ],
)
def test_a_fault_of_answers_is_heard_as_what_its_drill_names(
    fault: str, differs_in: str, tmp_path: Path
) -> None:
    right = heard()
    assert (right.fault, right.output_ids) == ("", list(ANSWER))
    install(fault, str(tmp_path))
    wrong = heard()
    assert first_difference(right, wrong) == differs_in
    [drill] = [each for each in DRILLS if each.fault == fault]
    assert f"({differs_in} of" in drill.because
    if fault != "wrong chunks":
        assert wrong.fault == "", "consistent in itself: a comparison alone finds it"


def test_a_pause_and_a_leak_change_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PAUSE_S", 0.2)
    right = heard()
    install("pausing", str(tmp_path))
    install("leaking", str(tmp_path))
    began_s = time.monotonic()
    assert first_difference(right, heard()) == ""
    assert time.monotonic() - began_s > 0.19


def test_a_fault_depends_only_on_the_request() -> None:
    hits = [number for number in range(1000) if is_hit(0.03, "x", number)]
    assert hits == [number for number in range(1000) if is_hit(0.03, "x", number)]
    assert 15 < len(hits) < 50
