"""Sends one request over KServe's ``ModelStreamInfer`` and reads its responses to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import grpc  # type: ignore[import-untyped]

from pipelines.time_limit import within

_ENDS_WITHIN_S = 5.0  # the stream of a failed request


async def responses_to(request: Any, call: Any) -> AsyncGenerator[Any, None]:
    """Send the only request of a stream and yield each response.

    Closing the generator cancels the request. After the last response the stream is read to its end, so that
    no call is cancelled while it ends: Triton 2.51 may never release it (its pull request 8078).

    Args:
        request: What the call takes.
        call: An open call of ``grpc.aio`` without requests.

    Raises:
        grpc.aio.AioRpcError: The call failed.
    """
    try:
        await call.write(request)
        await call.done_writing()
        async for response in call:
            yield response
    finally:
        call.cancel()  # has no effect on a call that has ended


async def read_to_the_end(arriving: AsyncGenerator[Any, None]) -> None:
    """Read the rest of ``responses_to`` after an error, for the reason that is given there.

    Nothing more is told about a request that has failed. The stream is cancelled if it does not end soon.
    """

    async def read() -> None:
        async for _ in arriving:
            pass

    with suppress(asyncio.TimeoutError, grpc.aio.AioRpcError):
        await within(_ENDS_WITHIN_S, read())
