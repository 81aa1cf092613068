"""Draft and target as NVIDIA's models of the same server: the loop's callables as gRPC requests.

Each round is two requests of a batch of one, to ``draft`` and to ``target``, with all tokens so far. The
target accepts; what a round gave is told from how much its answer grew.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from pipelines.errors import EngineFailedError, RequestTimeoutError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import GenerationCall
from pipelines.serving.output_end import OutputEnd
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.server_calls import ServerCalls
from pipelines.serving.tensorrt_llm_limits import reason_for_target_alone
from pipelines.serving.tensorrt_llm_target import TensorRtLlmTarget
from pipelines.serving.tensorrt_llm_tensors import (
    LOGITS,
    TOKENS,
    draft_tensors,
    new_tokens,
    proposal_logits,
    verification_tensors,
)
from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.loop import EngineStream
from pipelines.speculation.noise import NoiseStream, words_at
from pipelines.speculation.request import GenerationRequest, Output

DRAFT_TIMEOUT_S = 5.0  # as the embedded runtime's: requests can go on without a draft that hangs


class TensorRtLlmEngines:
    """Calls the models of draft and target, whose names are the pair's.

    Args:
        parameters: The settings of ``speculative``.
        calls: To the server.
    """

    def __init__(self, parameters: ModelParameters, calls: ServerCalls) -> None:
        self._alone = TensorRtLlmTarget(parameters, calls)
        self.vocabulary = self._alone.vocabulary
        self.end_ids = self._alone.end_ids
        self.carries_margins = False
        self.loop = StepLoop(())
        self.stream: EngineStream | None = self._between_rounds
        self.stream_alone: EngineStream | None = self._alone.generate
        self._calls = calls
        self._draft_model = parameters.text("draft_model")
        self._draft_vocab = parameters.integer("draft_vocab_size")
        self._draft_columns = parameters.integer("draft_padded_vocab_size")
        self._has_fast_logits = parameters.text("fast_logits") == "true"
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Start the loop. The engines are the server's own, which loads all its models together."""
        self.loop.start()

    def check(self, call: GenerationCall) -> None:
        """Refuse what the target cannot answer, even alone."""
        self._alone.check(call.request)

    def reason_for_target_alone(self, call: GenerationCall) -> str:
        """See ``tensorrt_llm_limits``."""
        return reason_for_target_alone(call)

    async def draft(self, request: GenerationRequest) -> Output:
        """Propose ``max_tokens`` tokens, the end of the text among them if it is likeliest there.

        Raises:
            DraftproofError: As ``ServerCalls.stream``; EngineFailedError also after ``DRAFT_TIMEOUT_S``.
        """
        wants_logits = request.return_generation_logits and not request.sampling.is_greedy
        tensors = draft_tensors(
            request, self._draft_columns, _seed(request, NoiseStream.DRAFT), scaled=not self._has_fast_logits
        )
        own_deadline_s = time.monotonic() + DRAFT_TIMEOUT_S
        deadline_s = min(own_deadline_s, request.deadline_s or own_deadline_s)
        try:
            outputs = await self._calls.whole(
                self._draft_model,
                tensors,
                [*TOKENS, LOGITS] if wants_logits else TOKENS,
                request_id=self._call_id(request),
                deadline_s=deadline_s,
            )
        except RequestTimeoutError:
            if deadline_s != own_deadline_s:
                raise
            raise EngineFailedError(
                "the draft does not answer",
                values=f"request {request.request_id}",
                limit=f"{DRAFT_TIMEOUT_S:g} s for a proposal",
                remedy="read the server's log",
            ) from None
        token_ids = new_tokens(outputs, request)
        logits = None
        if wants_logits and self._has_fast_logits:
            # A handle to logits that stay on the GPUs; it means something to the target alone.
            logits = outputs[LOGITS].reshape(1, -1)
        elif wants_logits:
            logits = proposal_logits(
                outputs[LOGITS],
                len(token_ids),
                request.sampling.temperature,
                self._draft_vocab,
                self._alone.padded_vocab_size,
            )
        return Output(token_ids, "length", is_final=True, generation_logits=logits)

    async def target(self, request: GenerationRequest) -> Output:
        """Verify draft tokens, or give one token without any.

        Raises:
            DraftproofError: As ``ServerCalls.stream``.
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
        # Each round ends in a token of the target's own, unless the text ended, which no token stands for.
        is_ended = len(grown) == count_accepted(request.draft_input_ids, grown)
        token_ids, is_stopped = OutputEnd(request, self.vocabulary).take(grown)
        return Output(token_ids, "stop" if is_stopped or is_ended else "length", is_final=True)

    async def _between_rounds(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """The target while nothing is drafted, for as long as it is asked: one request of its own.

        That is hardly ever left before its end: cancelled, it would cost the engine steps for nobody, and
        its blocks cannot be used again before it has ended.
        """
        sampling = replace(request.sampling, seed=_seed(request, NoiseStream.SHARED))
        async with aclosing(self._alone.generate(replace(request, sampling=sampling))) as outputs:
            async for output in outputs:
                yield output

    def _call_id(self, request: GenerationRequest) -> str:
        """No id twice: the backend finds the request to cancel by it."""
        return f"{request.request_id}/{next(self._numbers)}"


def _seed(request: GenerationRequest, stream: NoiseStream) -> int:
    """Seed of a round, from the request's and the position: the same one would draw the same noise again."""
    return int(words_at(request.sampling.seed, stream, len(request.input_ids), 1)[0])
