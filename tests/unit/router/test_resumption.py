"""Tests that an arm resumes another's answer exactly as it would have continued its own.

The engine's logits depend on every token before and on how its position was computed, so a single wrong bit
where two answers join changes the rest. Run: pytest tests/unit/router/test_resumption.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.executor.step_loop import StepLoop
from pipelines.router.engine_call import EngineCall
from pipelines.router.suspects import Suspects
from pipelines.triton.engine.answering import Answering
from pipelines.triton.engine.engine_answerer import EngineAnswerer
from pipelines.triton.engine.token_times import TokenTimes
from pipelines.wire.answer import Response
from pipelines.wire.call_server import CallServer
from pipelines.wire.calls import Call
from pipelines.wire.tensors import scalar_tensor
from pipelines.wire.word_list import pack_words
from tests.support.recorded_gauges import RecordedGauges
from tests.support.recording_engine import RecordingEngine, letters, make_executor

MAX_TOKENS = 24
SAMPLED = {"temperature": scalar_tensor(0.9, np.float32), "seed": scalar_tensor(7, np.uint64)}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "penalties": {
        "repetition_penalty": scalar_tensor(1.3, np.float32),
        "presence_penalty": scalar_tensor(0.4, np.float32),
        "frequency_penalty": scalar_tensor(0.3, np.float32),
    },
    "min_tokens": {
        **SAMPLED,
        "min_tokens": scalar_tensor(9, np.int32),
        "logit_bias_ids": np.array([[0]], np.int32),
        "logit_bias_values": np.array([[3.0]], np.float32),
    },
    "stop words": {**SAMPLED, "end_id": scalar_tensor(-1, np.int32), "stop_words_list": "abc"},
    "stop words after min_tokens": {
        **SAMPLED,
        "end_id": scalar_tensor(-1, np.int32),
        "min_tokens": scalar_tensor(7, np.int32),
        "stop_words_list": "letters",
    },
    "bad words": {**SAMPLED, "end_id": scalar_tensor(-1, np.int32), "bad_words_list": "short"},
    "log probabilities": {
        "end_id": scalar_tensor(-1, np.int32),
        "return_log_probs": scalar_tensor(True, np.bool_),
        "num_log_probs": scalar_tensor(2, np.int32),
    },
}
WORDS = {
    "abc": [[1, 2], [5, 6], [9, 10], [3, 3]],
    "short": [[1, 4], [2, 5], [6], [11, 12]],
    "letters": [[each] for each in range(1, 8)],
}


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("pipelines.triton.engine.chunks.CHUNK_INTERVAL_S", 0.0)
    executor = make_executor(RecordingEngine(64))
    loop = StepLoop((executor,))
    loop.start()
    path = tmp_path / "socket"
    times = TokenTimes(RecordedGauges())  # type: ignore[arg-type]
    answering = Answering(loop, EngineAnswerer(executor, None), times)
    server = CallServer(path, answering.take_call)
    yield path
    loop.stop()
    server.close()


def call_of(case: dict[str, Any]) -> Call:
    prompt = [3, 1, 4, 1, 5, 9]
    words = {
        name: pack_words(WORDS[value])[np.newaxis] for name, value in case.items() if isinstance(value, str)
    }
    tensors = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": scalar_tensor(len(prompt), np.int32),
        "request_output_len": scalar_tensor(MAX_TOKENS, np.int32),
        "seed": scalar_tensor(0, np.uint64),
        **case,
        **words,
    }
    return Call(tensors, "r", 0)


async def all_of(responses: AsyncGenerator[Response, None]) -> list[Response]:
    async with aclosing(responses):
        return [response async for response in responses]


def told(responses: list[Response]) -> tuple[list[int], bytes, list[Any], Any]:
    """Return tokens, text, log probabilities, and the figures of the whole answer."""
    ids: list[int] = []
    text, log_probs = b"", []
    for outputs, _ in responses:
        new_ids = outputs["output_ids"].reshape(-1).tolist()
        ids += new_ids
        text += letters().join(new_ids)[: outputs["text_length"].item()]
        log_probs += outputs["output_log_probs"].reshape(-1).tolist()
        log_probs += outputs["top_log_prob_ids"].reshape(-1).tolist()
    last = responses[-1][0]
    whole = last["finish_reason"].item(), last["sequence_length"].item(), last["output_seed"].item()
    return ids, text, log_probs, whole


@pytest.mark.parametrize("case", CASES)
async def test_what_follows_is_what_would_have_followed(socket: Path, case: str) -> None:
    arms = EngineCall(
        call_of(CASES[case]), {"stable": socket}, letters(), lambda arm: lambda outcome: None, Suspects()
    )
    whole = await all_of(arms.ask("stable"))
    ids = told(whole)[0]
    assert len(whole) > 4 and whole[-1][1]
    for num_chunks in range(1, len(whole)):
        begin = whole[:num_chunks]
        known = told(begin)[0]
        if len(known) == MAX_TOKENS:
            continue
        rest = await all_of(arms.resume("stable", known, begin[-1]))
        assert told([*begin, *rest]) == told(whole), (num_chunks, ids)
        sums = [responses[-1][0]["cum_log_probs"].item() for responses in (rest, whole)]
        assert sums[0] == pytest.approx(sums[1], rel=1e-5)
        assert rest[-1][0]["cum_log_probs"].dtype == np.float32
