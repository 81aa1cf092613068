"""Tests that an arm resumes another's answer exactly as it would have continued its own.

The engine's logits depend on every token before and on how its position was computed, so a single wrong bit
where two answers join changes the rest. Run: pytest tests/unit/router/test_resumption.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.executor.step_loop import StepLoop
from pipelines.router.arms import Arm
from pipelines.router.engine_call import EngineCall
from pipelines.router.suspects import Suspects
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.triton.backend.gauges import TokenTimes
from pipelines.triton.engine.answering import Answering, TargetAlone
from pipelines.wire.calls import CallServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from tests.support.recorded_gauges import RecordedGauges
from tests.support.recording_engine import RecordingEngine, letters, make_executor

MAX_TOKENS = 24


def words(*each: list[int]) -> tuple[bytes, ...]:
    return tuple(letters().join(ids) for ids in each)


SAMPLED = SamplingParams(temperature=float(np.float32(0.9)), seed=7)
CASES: dict[str, EngineRequest] = {
    name: EngineRequest(
        (3, 1, 4, 1, 5, 9), MAX_TOKENS, sampling=others.pop("sampling", SamplingParams()), **others
    )
    for name, others in {
        "penalties": {
            "sampling": SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
        },
        "stop words": {"sampling": SAMPLED, "end_id": -1, "stop": words([1, 2], [5, 6], [9, 10], [3, 3])},
        "stop words after min_tokens": {
            "sampling": replace(SAMPLED, min_tokens=7),
            "end_id": -1,
            "stop": words(*([each] for each in range(1, 8))),
        },
        "bad words": {"sampling": SAMPLED, "end_id": -1, "bad_words": words([1, 4], [2, 5], [6], [11, 12])},
        "log probabilities": {"end_id": -1, "num_log_probs": 2},
    }.items()
}


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("pipelines.triton.engine.chunks.CHUNK_INTERVAL_S", 0.0)
    executor = make_executor(RecordingEngine(64))
    loop = StepLoop((executor,))
    loop.start()
    path = tmp_path / "socket"
    times = TokenTimes(RecordedGauges())  # type: ignore[arg-type]
    alone = TargetAlone(executor.vocabulary, executor.config.end_ids, executor.check, executor.generate)
    answering = Answering(loop, alone, times)
    server = CallServer(path, answering.take)
    yield path
    loop.stop()
    server.close()


async def all_of(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    async with aclosing(chunks):
        return [chunk async for chunk in chunks]


def told(chunks: list[Chunk]) -> tuple[tuple[int, ...], str, list[str], Any]:
    """Return tokens, text, log probabilities, and the figures of the whole answer."""
    ids = tuple(token_id for chunk in chunks for token_id in chunk.output_ids)
    log_probs = [repr(each) for chunk in chunks for each in chunk.log_probs]
    log_probs += [repr(each) for chunk in chunks for each in chunk.top_log_probs]
    last = chunks[-1]
    whole = last.finish_reason, last.sequence_length, last.seed
    return ids, "".join(chunk.text for chunk in chunks), log_probs, whole


@pytest.mark.parametrize("case", CASES)
async def test_what_follows_is_what_would_have_followed(socket: Path, case: str) -> None:
    sockets: dict[Arm, Path] = {"stable": socket}
    call = EngineCall(CASES[case], sockets, letters(), Suspects())
    whole = await all_of(call.ask("stable"))
    assert len(whole) > 4 and whole[-1].is_last
    for num_chunks, chunk in enumerate(whole[:-1], start=1):
        call.deliver(chunk)
        rest = await all_of(call.ask("stable"))
        assert told([*whole[:num_chunks], *rest]) == told(whole), num_chunks
        assert rest[-1].cum_log_prob == pytest.approx(whole[-1].cum_log_prob, rel=1e-12)
