"""Sends one request over KServe's ``ModelStreamInfer`` and reads its responses to the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any


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
