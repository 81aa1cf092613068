"""Calls draft and target as NVIDIA's models of the same server, over gRPC.

Each round is two requests of batch size one, to ``draft`` and to ``target``, with all tokens so far. The
target accepts draft tokens; the length of its answer tells how many.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import EngineFailedError, RequestTimeoutError
from pipelines.manifest import EngineFiles
from pipelines.speculation.loop import EngineStream
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.noise import NoiseStream, words_at
from pipelines.speculation.token_ids import count_accepted
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.grammars import Grammars
from pipelines.triton.tensorrt_llm.end_of_output import OutputEnd
from pipelines.triton.tensorrt_llm.limits import reason_for_target_alone
from pipelines.triton.tensorrt_llm.server_calls import ServerCalls
from pipelines.triton.tensorrt_llm.target import TensorRtLlmTarget
from pipelines.triton.tensorrt_llm.tensors import (
    LOGITS,
    TOKENS,
    draft_tensors,
    new_tokens,
    proposal_logits,
    verification_tensors,
)
from pipelines.wire.messages import EngineRequest

DRAFT_TIMEOUT_S = 5.0  # same as the embedded runtime: requests continue without a draft that hangs


class TensorRtLlmEngines:
    """Calls the models of draft and target.

    Args:
        parameters: Settings of ``speculative``.
        calls: Channel to the server.

    Raises:
        EngineLoadError: An engine is not the one for which the model was rendered, or has changed.
    """

    def __init__(self, parameters: ModelParameters, calls: ServerCalls) -> None:
        for role in ("draft", "target"):  # NVIDIA's backend loads them without checks
            directory = parameters.path(f"{role}_engine_dir")
            EngineFiles(directory, parameters.text(f"{role}_engine_digest")).check_all()
        self._alone = TensorRtLlmTarget(parameters, calls)
        self.vocabulary = self._alone.vocabulary
        self.end_ids = self._alone.end_ids
        self.grammars: Grammars | None = None
        self.loop = AsyncioThread("requests")
        self.stream: EngineStream | None = self._between_rounds
        self.stream_alone: EngineStream | None = self._alone.generate
        self._calls = calls
        self._draft_vocab = parameters.integer("draft_vocab_size")
        self._draft_columns = parameters.integer("draft_padded_vocab_size")
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Start the loop. Triton loads the engines itself."""
        self.loop.start()

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that the target cannot answer even alone."""
        self._alone.check(request)

    async def read_ahead(self, request: GenerationRequest) -> None:
        """Do nothing: these engines keep their caches themselves."""

    def reason_for_target_alone(self, asked: EngineRequest) -> str:
        """Return why the target must answer alone; see ``limits``."""
        return reason_for_target_alone(asked)

    async def draft(self, request: GenerationRequest) -> Output:
        """Propose ``max_tokens`` tokens, possibly including an end token.

        Raises:
            DraftproofError: See ``ServerCalls.stream``; EngineFailedError also after ``DRAFT_TIMEOUT_S``.
        """
        wants_logits = request.return_generation_logits and not request.sampling.is_greedy
        tensors = draft_tensors(request, self._draft_columns, _seed(request, NoiseStream.DRAFT))
        own_deadline_s = time.monotonic() + DRAFT_TIMEOUT_S
        deadline_s = min(own_deadline_s, request.deadline_s or own_deadline_s)
        try:
            outputs = await self._calls.whole(
                "draft",
                tensors,
                [*TOKENS, LOGITS] if wants_logits else TOKENS,
                request_id=self._call_id(request),
                deadline_s=deadline_s,
            )
        except RequestTimeoutError:
            if deadline_s != own_deadline_s:
                raise
            raise EngineFailedError(
                f"the draft did not answer request {request.request_id} within {DRAFT_TIMEOUT_S:g} s",
                "read the server's log",
            ) from None
        token_ids = new_tokens(outputs, request)
        logits = None
        if wants_logits:
            logits = proposal_logits(
                outputs[LOGITS],
                len(token_ids),
                request.sampling.temperature,
                self._draft_vocab,
                self._alone.padded_vocab_size,
            )
        return Output(token_ids, "length", is_final=True, generation_logits=logits)

    async def target(self, request: GenerationRequest) -> Output:
        """Verify draft tokens; without any, generate one token.

        Raises:
            DraftproofError: See ``ServerCalls.stream``.
        """
        tensors = verification_tensors(
            request, self._alone.padded_vocab_size, _seed(request, NoiseStream.SHARED)
        )
        outputs = await self._calls.whole(
            self._alone.model,
            tensors,
            TOKENS,
            request_id=self._call_id(request),
            deadline_s=request.deadline_s,
        )
        grown = new_tokens(outputs, request)
        # Each round ends with a token of the target, unless the text ended: the end token is not returned.
        is_ended = len(grown) == count_accepted(request.draft_input_ids, grown)
        token_ids, is_stopped = OutputEnd(request, self.vocabulary).take(grown)
        return Output(token_ids, "stop" if is_stopped or is_ended else "length", is_final=True)

    async def _between_rounds(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Stream the target's answer while nothing is drafted, as one request.

        It is rarely closed before its end: a cancelled request still costs engine steps, and its blocks are
        not freed until it has ended.
        """
        sampling = replace(request.sampling, seed=_seed(request, NoiseStream.SHARED))
        async with aclosing(self._alone.generate(replace(request, sampling=sampling))) as outputs:
            async for output in outputs:
                yield output

    def _call_id(self, request: GenerationRequest) -> str:
        """Return a unique id, by which the backend finds a request to cancel."""
        return f"{request.request_id}/{next(self._numbers)}"


def _seed(request: GenerationRequest, stream: NoiseStream) -> int:
    """Derive a seed from the request's seed and the position, so that each round draws new noise."""
    return int(words_at(request.sampling.seed, stream, len(request.input_ids), 1)[0])
