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
from pipelines.executor import sequence
from pipelines.executor.lane import Work
from pipelines.speculation.request import GenerationRequest, Output

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

    def fit(self, work: list[Work]) -> list[Work]:
        """Leave slow requests of a planned step to a later one: all but one, and that one until its turn.

        Args:
            work: The planned step, which stays as it is if all are slow.
        """
        slow = [(item, slow_s) for item in work if (slow_s := _slow_s(item))]
        if len(slow) in (0, len(work)):
            return work
        turn = None
        if time.monotonic() >= self._next_s:
            turn, slow_s = slow[self._num_turns % len(slow)]
            self._num_turns += 1
            self._next_s = time.monotonic() + slow_s / _SLOW_SHARE
        return [item for item in work if item is turn or not _slow_s(item)]


def _slow_s(item: Work) -> float:
    grammar = item.sequence.request.grammar
    return 0.0 if grammar is None else grammar.slow_s


@contextmanager
def looking_ahead(sequences: Sequence[sequence.Sequence]) -> Iterator[None]:
    """Compute what grammars allow on another thread while the engine computes logits; wait at the end.

    A request whose grammar is too slow verifies fewer of its draft tokens, so that others need not wait.

    Args:
        sequences: Requests that get logits from the step.
    """
    guided = [each for each in sequences if each.sampler.has_grammar]
    running = _LOOK_AHEAD_THREAD.submit(_look_ahead, guided) if guided else None
    try:
        yield
    finally:
        if running is not None:
            running.result()


def _look_ahead(sequences: Sequence[sequence.Sequence]) -> None:
    for each in sequences:
        with suppress(BaseException):  # the choice will fail in the same way, for this request alone
            num_ready = each.sampler.look_ahead(each.draft_ids, _LOOK_AHEAD_S / len(sequences))
            if num_ready < len(each.draft_ids):
                each.leave_out(len(each.draft_ids) - num_ready)


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
    grammar, renewed = request.grammar, None
    is_proposal = request.keep_drafting is not None or request.target_states is not None
    while True:
        new_ids = []
        try:
            async with aclosing(generate(request)) as outputs:
                async for output in outputs:
                    yield output
                    new_ids.append(output.token_ids)
            return
        except InvalidRequestError:
            is_new = request is not renewed or new_ids
            if grammar is None or is_proposal or not is_new or not grammar.is_used_up:
                raise
        await asyncio.get_running_loop().run_in_executor(_RENEWAL_THREADS, grammar.renew)
        request = renewed = replace(
            request,
            input_ids=np.concatenate((request.input_ids, *new_ids)),
            prompt_length=request.num_prompt_tokens,
            max_tokens=request.max_tokens - sum(map(len, new_ids)),
            prompt_log_probs=request.prompt_log_probs and not new_ids,
        )
