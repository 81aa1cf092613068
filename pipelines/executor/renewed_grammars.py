"""Lets requests go on whose grammars have used up their room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.speculation.request import GenerationRequest, Output

_THREADS = ThreadPoolExecutor(2, thread_name_prefix="grammars anew")


async def with_renewed_grammars(
    generate: Callable[[GenerationRequest], AsyncGenerator[Output, None]], request: GenerationRequest
) -> AsyncGenerator[Output, None]:
    """Answer a request; where its grammar has no room left, renew that off the loop and continue the answer.

    A grammar that has no room for the next token right after that ends the answer. So it depends on the
    output alone whether it goes on, not on other requests and rejected drafts. Proposals just end: the round
    goes on without them.

    Args:
        generate: Answers a request.
        request: The request.
    """
    renewed_at = -1
    while True:
        try:
            async with aclosing(generate(request)) as outputs:
                async for output in outputs:
                    yield output
                    request = _after(request, output)
            return
        except InvalidRequestError:
            grammar = request.grammar
            if grammar is None or request.keep_drafting or renewed_at == len(request.input_ids):
                raise
            if not grammar.is_used_up:
                raise
        renewed_at = len(request.input_ids)
        await asyncio.get_running_loop().run_in_executor(_THREADS, grammar.renew)


def _after(request: GenerationRequest, output: Output) -> GenerationRequest:
    """Return the request for what follows an output."""
    return replace(
        request,
        input_ids=np.concatenate((request.input_ids, output.token_ids)),
        prompt_length=request.num_prompt_tokens,
        max_tokens=request.max_tokens - len(output.token_ids),
        prompt_log_probs=False,
    )
