"""Calls between models: tensors and errors come back as they were, and nobody waits for who has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import EngineFailedError, InternalError, PromptTooLongError
from pipelines.serving.local_calls import call, serve_calls


def run(tmp_path: Path, answer: Any, scenario: Callable[[Path], Awaitable[None]]) -> None:
    path = tmp_path / "engine.sock"

    async def both() -> None:
        server = await serve_calls(path, answer, lambda error: InternalError("hidden").to_wire())
        await asyncio.wait_for(scenario(path), 10)
        server.close()
        await asyncio.sleep(0.01)  # the connections close behind it

    asyncio.run(both())


def test_tensors_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "output_ids": np.arange(6, dtype=np.int32).reshape(1, 1, 6),
        "empty": np.empty((1, 0), dtype=np.bool_),
        "seed": np.array([[2**64 - 1]], dtype=np.uint64),
        "rate": np.array([[0.25]], dtype=np.float32),
        "finish_reason": np.array([["caf\xe9\n".encode()]], dtype=np.object_),
    }

    async def echo(given: Any, request_id: str, timeout_us: int) -> Any:
        assert (request_id, timeout_us) == ("r1", 5)
        return given

    async def scenario(path: Path) -> None:
        answers = await asyncio.gather(*(call(path, tensors, "r1", 5) for _ in range(20)))
        for answer in answers:
            assert list(answer) == list(tensors)
            for name, array in tensors.items():
                assert answer[name].dtype == array.dtype
                assert answer[name].shape == array.shape
                assert (answer[name] == array).all()

    run(tmp_path, echo, scenario)


def test_errors_keep_their_class_and_defects_their_secrets(tmp_path: Path) -> None:
    async def answer(given: Any, request_id: str, timeout_us: int) -> Any:
        raise PromptTooLongError("too long", limit="8") if request_id == "known" else KeyError("a secret")

    async def scenario(path: Path) -> None:
        with pytest.raises(PromptTooLongError, match="too long; 8"):
            await call(path, {}, "known", 0)
        with pytest.raises(InternalError, match="hidden"):
            await call(path, {}, "unknown", 0)

    run(tmp_path, answer, scenario)


def test_a_caller_that_leaves_cancels_the_answer(tmp_path: Path) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def answer(given: Any, request_id: str, timeout_us: int) -> Any:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def scenario(path: Path) -> None:
        calling = asyncio.create_task(call(path, {}, "r1", 0))
        await began.wait()
        calling.cancel()
        await ended.wait()

    run(tmp_path, answer, scenario)


def test_an_engine_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(EngineFailedError, match=r"absent\.sock"):
        asyncio.run(call(tmp_path / "absent.sock", {}, "r1", 0))


def test_only_this_user_may_call(tmp_path: Path) -> None:
    async def scenario(path: Path) -> None:
        assert path.stat().st_mode & 0o077 == 0

    run(tmp_path, None, scenario)
