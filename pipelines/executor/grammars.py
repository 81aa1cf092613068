"""Follows the grammars of requests: masks while the engine runs, and new room off the step loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.executor.request import Request
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS

_LOOK_AHEAD_S = 0.02
"""Time of a step for the masks behind draft tokens, shared by its requests; a usual mask takes 50 us."""

_SLOW_SHARE = 0.1
"""Share of the time that slow masks get while there are other requests."""

_LOOK_AHEAD_THREAD = ThreadPoolExecutor(1, thread_name_prefix="grammars")

_RENEWAL_THREADS = ThreadPoolExecutor(2, thread_name_prefix="grammars anew")


class GrammarTurns:
    """Lets requests whose masks are slow take turns, so that others keep most of the time."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._next_s = 0.0

    def resting(self, running: Sequence[Request]) -> frozenset[Request]:
        """Return the slow requests that leave the next step to others: all but one, and that until its turn.

        Args:
            running: All running requests; none rests if all are slow.
        """
        slow = [each for each in running if _slow_s(each)]
        if len(slow) in (0, len(running)):
            return frozenset()
        if time.monotonic() < self._next_s:
            return frozenset(slow)
        turn = slow.pop(self._num_turns % len(slow))
        self._num_turns += 1
        self._next_s = time.monotonic() + _slow_s(turn) / _SLOW_SHARE
        return frozenset(slow)


def _slow_s(request: Request) -> float:
    grammar = request.asked.grammar
    return 0.0 if grammar is None else grammar.slow_s


@contextmanager
def looking_ahead(requests: Sequence[Request]) -> Iterator[None]:
    """Compute what grammars allow on another thread while the engine computes logits; wait at the end.

    A request whose grammar is too slow verifies fewer of its draft tokens, so that others need not wait.

    Args:
        requests: Requests that get logits from the step.
    """
    guided = [each for each in requests if each.sampler.has_grammar]
    running = _LOOK_AHEAD_THREAD.submit(_look_ahead, guided) if guided else None
    try:
        yield
    finally:
        if running is not None:
            running.result()


def _look_ahead(requests: Sequence[Request]) -> None:
    for each in requests:
        with suppress(BaseException):  # the choice will fail in the same way, for this request alone
            draft_ids = each.draft_ids if each.is_verification else NO_TOKENS  # no mask tokens
            num_ready = each.sampler.look_ahead(draft_ids, _LOOK_AHEAD_S / len(requests))
            if num_ready < len(draft_ids):
                each.leave_out_drafts(len(draft_ids) - num_ready)


async def with_renewed_grammars(
    generate: Callable[[GenerationRequest], AsyncGenerator[Output, None]], asked: GenerationRequest
) -> AsyncGenerator[Output, None]:
    """Answer a request; where its grammar has no room left, renew that off the loop and continue the answer.

    A grammar that has no room for the next token right after that ends the answer. So it depends on the
    output alone whether it goes on, not on other requests and rejected drafts. Proposals just end: the round
    goes on without them.

    Args:
        generate: Answers a request.
        asked: The request.
    """
    grammar, renewed = asked.grammar, None
    is_proposal = asked.keep_drafting is not None or asked.target_states is not None
    while True:
        new_ids = []
        try:
            async with aclosing(generate(asked)) as outputs:
                async for output in outputs:
                    yield output
                    new_ids.append(output.token_ids)
            return
        except InvalidRequestError:
            is_new = asked is not renewed or new_ids
            if grammar is None or is_proposal or not is_new or not grammar.is_used_up:
                raise
        await asyncio.get_running_loop().run_in_executor(_RENEWAL_THREADS, grammar.renew)
        asked = renewed = replace(
            asked,
            input_ids=np.concatenate((asked.input_ids, *new_ids)),
            prompt_length=asked.num_prompt_tokens,
            max_tokens=asked.max_tokens - sum(map(len, new_ids)),
            prompt_log_probs=asked.prompt_log_probs and not new_ids,
        )
