"""One way to an answer: tokenizes, chooses an arm, falls back to another one if it fails, and observes.

If the client sends no seed, the router draws one and sends it to every arm. So arms with the same target give
the same answer: a fallback can take over in mid-stream, and a replay on the candidate can be compared token
by token. Whichever arm takes over continues after the tokens that the client has.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from pipelines.errors import InvalidRequestError, RequestTimeoutError
from pipelines.router.arms import ArmTable, Bands, LiveArms
from pipelines.router.engine_answer import prompt_id
from pipelines.router.engine_call import EngineCall
from pipelines.router.observation_log import ObservationLog
from pipelines.router.preprocessing import NUM_THREADS, Preprocessing
from pipelines.router.routing import Routing
from pipelines.router.suspects import Suspects
from pipelines.time_limit import within
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import joined
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import MAX_ID_BYTES, CompletionRequest


class Router:
    """Answers requests through the arms. Runs on a single event loop.

    Attributes:
        routing: The arms, their breakers and observations.
        vocabulary: Bytes of the target's tokens.
        log: The log of observations.

    Args:
        preprocessing: Turns requests for text into requests for tokens.
        arms: The table of arms.
        log: Receives an observation of each answer during a rollout.
    """

    def __init__(self, preprocessing: Preprocessing, arms: LiveArms, log: ObservationLog) -> None:
        self.vocabulary = preprocessing.vocabulary
        self.log = log
        self._preprocess = preprocessing
        self._tokenizing = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")
        self._suspects = Suspects()
        self.routing: Routing[Chunk] = Routing(arms, log)

    @classmethod
    def of(
        cls, parameter: Callable[[str], str], preprocessing: Preprocessing, *, in_rollouts: bool = False
    ) -> Router:
        """Return a router to the engines of this machine.

        Args:
            parameter: Returns a parameter of the model ``router`` by its name.
            preprocessing: See the class.
            in_rollouts: Whether it follows the table of arms, as the front door does.
        """
        max_batch_size = int(parameter("max_batch_size"))
        bands = Bands(max(2, max_batch_size // 4), max(3, max_batch_size))
        pair = ArmTable.without_rollout(
            parameter("stable_socket"), bands, control=parameter("control_socket")
        )
        arms = LiveArms(Path(parameter("arms_file")) if in_rollouts else None, pair)
        return cls(preprocessing, arms, ObservationLog(Path(parameter("observations_file"))))

    async def answer(
        self,
        request: CompletionRequest,
        *,
        streaming: bool,
        request_id: str = "",
        timeout_us: int = 0,
        only_arm: str = "",
    ) -> AsyncGenerator[Chunk, None]:
        """Stream the chunks of one answer; the last one names the arm.

        Args:
            request: The request.
            streaming: Whether the client wants chunks as they come; otherwise there is one.
            request_id: The client's id; need not be unique.
            timeout_us: Time limit in microseconds; 0 for none.
            only_arm: The arm that alone may answer; "" to choose one, and others if it fails.

        Raises:
            InvalidRequestError: The request is invalid, or names an arm that is not served.
            DraftproofError: No arm answered; this is the error of the last one.
        """
        for name in ("session_id", "cache_salt", "arm"):
            _check_id(name, getattr(request, name))
        asked = await self._tokenized(request, timeout_us)
        answered = self.answer_tokens(
            replace(asked, streaming=streaming, request_id=request_id),
            only_arm or request.arm,
            is_alone=bool(only_arm),
            skip_special_tokens=request.skip_special_tokens,
        )
        async with aclosing(answered) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        """Stop all replays."""
        await self.routing.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    async def _tokenized(self, request: CompletionRequest, timeout_us: int) -> EngineRequest:
        """Return the request to an engine, with the time left; a long text is tokenized on a thread."""
        began_s = time.monotonic()
        if self._preprocess.is_quick(request):
            asked = self._preprocess(request)
        else:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._tokenizing, self._preprocess, request)
            try:
                asked = await within(timeout_us / 1e6 or None, work)
            except asyncio.TimeoutError:
                raise RequestTimeoutError(
                    f"the request's deadline passed before its text was tokenized: timeout={timeout_us} us",
                    "allow more time, shorten the prompt, or send fewer long prompts concurrently",
                ) from None
        if not timeout_us:
            return asked
        return replace(asked, timeout_us=max(1, timeout_us - int(1e6 * (time.monotonic() - began_s))))

    async def answer_tokens(
        self,
        request: EngineRequest,
        named: str = "",
        *,
        is_alone: bool = False,
        skip_special_tokens: bool = True,
    ) -> AsyncGenerator[Chunk, None]:
        """Stream the chunks of engines' answer to a request for tokens.

        Args:
            request: The request to an engine.
            named: The arm that the client chose; "" to choose one by weight.
            is_alone: Whether no other arm may answer.
            skip_special_tokens: Whether special tokens are left out of the text.

        Raises:
            DraftproofError: See ``answer``.
        """
        table = self.routing.table
        own_id = f"{request.request_id}/{secrets.token_hex(8)}"
        key = request.session_id or request.request_id or own_id
        named_by = prompt_id(request) if table.canary_id else ""
        routed = self.routing.begin(
            table, own_id, key, session_id=request.session_id, named=named, prompt_id=named_by
        )
        if table.candidate:
            # Stable remembers more of a session than the candidate, whose draft would look worse than it is.
            request = replace(request, session_id="")
        call = EngineCall(
            request,
            {arm: Path(socket) for arm, socket in table.sockets.items()},
            self.vocabulary,
            self._suspects,
            skip_special_tokens=skip_special_tokens,
            is_observed=bool(table.canary_id),
        )
        held: list[Chunk] = []
        num_drafted = 0
        answered = self.routing.answer(routed, call, streaming=request.streaming, is_alone=is_alone)
        async with aclosing(answered) as chunks:
            async for arm, chunk in chunks:
                held.append(chunk)
                if not (request.streaming or chunk.is_last):
                    continue
                whole, held = joined(held), []
                if whole.is_last:
                    yield replace(whole, arm=arm, fallback_from=routed.observation.fallback_from)
                else:
                    yield with_news_only(whole, num_drafted)
                if whole.counts is not None:
                    num_drafted = whole.counts.total_draft_tokens


def with_news_only(chunk: Chunk, num_drafted: int) -> Chunk:
    """Return a chunk before the last without what comes with the last, and counts that have not changed."""
    chunk = replace(chunk, seed=None, num_cached=0, draft_length="")
    if chunk.counts is not None and chunk.counts.total_draft_tokens == num_drafted:
        chunk = replace(chunk, counts=None)
    return chunk


def _check_id(name: str, value: str) -> None:
    num_bytes = len(value.encode())
    if num_bytes > MAX_ID_BYTES:
        raise InvalidRequestError(
            f"the {name} has {num_bytes} bytes, more than {MAX_ID_BYTES}",
            "send a shorter one, such as a UUID or a digest of the long one",
        )
