"""Tests of how HTTP answers end: with an error, with their model's process, or for a client that left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InternalError,
    InvalidRequestError,
    ProcessEndedError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from tests.unit.gateway.stand_in_triton import Behind, until
from tests.unit.gateway.test_http_server import GENERATE, HELLO, error_of, run


@pytest.mark.parametrize(
    ("error", "status"),
    [
        *((InvalidRequestError("a", values="b"), 400), (ServerBusyError("a"), 503)),
        *((ServerUnavailableError("a"), 503), (RequestTimeoutError("a"), 504), (EngineFailedError("a"), 500)),
        (ProcessEndedError("a"), 503),
        (ValueError("of ours"), 500),
    ],
)
def test_every_error_is_one_of_ours_with_its_status(tmp_path: Path, error: Exception, status: int) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        behind.health.refusal = error
        for path in (GENERATE, f"{GENERATE}_stream", "/v2/models/generate/infer"):
            reply = await client.post(path, json=HELLO)
            assert reply.status == status
            assert ("Retry-After" in reply.headers) == (status == 503)
            told = await error_of(reply)
            assert type(told) is (type(error) if isinstance(error, DraftproofError) else InternalError)
            assert "of ours" not in str(told)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("draftproof/server_busy: full", 503, ServerBusyError),
        ("draftproof/engine_failed: broken", 500, EngineFailedError),
        ("an error of Triton's own", 400, InvalidRequestError),
        ("break", 503, ServerUnavailableError),
    ],
)
def test_what_triton_answers_is_told(
    tmp_path: Path, text: str, status: int, kind: type[DraftproofError]
) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        infer = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]}
        for path, body in (
            ("generate", {"text_input": text, "max_tokens": 0}),
            ("generate_stream", {"text_input": text, "max_tokens": 0}),
            ("infer", infer),
        ):
            reply = await client.post(f"/v2/models/generate/{path}", json=body)
            assert (reply.status, type(await error_of(reply))) == (status, kind), path
        reply = await client.post(f"{GENERATE}_stream", json={"text_input": text, "max_tokens": 1})
        *_, last, nothing = (await reply.text()).split("\n\n")
        assert reply.status == 200 and nothing == ""
        assert type(from_wire(json.loads(last[6:])["error"])) is kind
        await behind.all_ended()

    run(tmp_path, scenario)


HANG = {"text_input": "hang", "max_tokens": 1}


INFER_HANG = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hang"]}]}
ASKED = [(GENERATE, HANG), (f"{GENERATE}_stream", HANG), ("/v2/models/generate/infer", INFER_HANG)]


async def asked(behind: Behind, client: Any, path: str, body: dict[str, Any]) -> asyncio.Task[Any]:
    """Return a request that hangs in Triton; a stream's answer has begun."""
    task = asyncio.create_task(client.post(path, json=body))
    num_before = len(behind.stand_in.requests)
    await until(lambda: len(behind.stand_in.requests) > num_before)
    await until(lambda: task.done() or not path.endswith("_stream"))
    return task


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_a_client_that_leaves_frees_what_it_asked_for(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        task = await asked(behind, client, path, body)
        assert behind.calls.num_open == 1
        if task.done():
            (await task).close()
        else:
            task.cancel()
        await asyncio.wait_for(behind.stand_in.cancelled.wait(), 10)
        await behind.all_ended()

    run(tmp_path, scenario)


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_the_end_of_a_model_s_process_ends_its_answers(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        task = await asked(behind, client, path, body)
        behind.end("router", EngineFailedError("the model's process ended", values="it was killed"))
        reply = await asyncio.wait_for(task, 10)
        if path.endswith("_stream"):
            *_, last, nothing = (await asyncio.wait_for(reply.text(), 10)).split("\n\n")
            error = from_wire(json.loads(last[6:])["error"])
            assert (reply.status, nothing) == (200, "")
        else:
            error = await error_of(reply)
            assert reply.status == 500
        assert isinstance(error, EngineFailedError) and "it was killed" in str(error)
        await asyncio.wait_for(behind.stand_in.cancelled.wait(), 10)

    run(tmp_path, scenario)


def test_one_request_more_than_the_limit_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        tasks = [await asked(behind, client, GENERATE, HANG) for _ in range(4)]
        for path, body in ASKED:
            reply = await client.post(path, json=body)
            assert reply.status == 503
            assert isinstance(await error_of(reply), ServerBusyError)
        assert behind.calls.num_refused == 3
        for task in tasks:
            task.cancel()
        await behind.all_ended()
        assert (await client.post(GENERATE, json=HELLO)).status == 200

    run(tmp_path, scenario)
