"""Tests of the datatypes of inputs: Triton is asked once, even for thousands of concurrent requests."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from pipelines.errors import ServerUnavailableError
from pipelines.triton.gateway.input_datatypes import InputDatatypes
from pipelines.triton.gateway.triton import Triton

CONFIG = {
    "input": [
        {"name": "text_input", "data_type": "TYPE_STRING"},
        {"name": "max_tokens", "data_type": "TYPE_INT32"},
    ]
}
DATATYPES = {"text_input": "BYTES", "max_tokens": "INT32"}


class Asked:
    """Answers when the test lets it, and counts how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def config(self, model: str) -> dict[str, Any]:
        self.num_asked += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return CONFIG


async def burst(datatypes: InputDatatypes) -> list[asyncio.Task[Any]]:
    asking = [asyncio.create_task(datatypes.of("router")) for _ in range(1000)]
    await asyncio.sleep(0)
    return asking


def test_a_burst_of_first_requests_asks_once() -> None:
    async def run() -> None:
        triton = Asked()
        datatypes = InputDatatypes(cast(Triton, triton))
        asking = await burst(datatypes)
        asking[0].cancel()  # its client leaves
        await asyncio.sleep(0)
        triton.may_answer.set()
        assert await asyncio.gather(*asking[1:]) == [DATATYPES] * 999
        assert asking[0].cancelled()
        assert await datatypes.of("router") == DATATYPES
        assert triton.num_asked == 1
        datatypes.forget("router")
        assert await datatypes.of("router") == DATATYPES
        assert triton.num_asked == 2

    asyncio.run(run())


def test_a_failure_is_not_kept() -> None:
    async def run() -> None:
        triton = Asked()
        triton.error = ServerUnavailableError("Triton does not answer")
        triton.may_answer.set()
        datatypes = InputDatatypes(cast(Triton, triton))
        ended = await asyncio.gather(*await burst(datatypes), return_exceptions=True)
        assert {type(each) for each in ended} == {ServerUnavailableError}
        triton.error = None
        assert await datatypes.of("router") == DATATYPES
        assert triton.num_asked == 2

    asyncio.run(run())
