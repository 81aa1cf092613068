"""Sends one request to arms over their Unix sockets and records the outcomes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import RequestTimeoutError
from pipelines.router.arms import Arm
from pipelines.router.breaker import Breaker, Outcome
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.answer import Response, continued, without_first
from pipelines.wire.calls import Call, stream
from pipelines.wire.tensors import read_scalar, scalar_tensor


class EngineArms:
    """The ``ArmClient`` of one request.

    Attributes:
        outcomes: Known outcomes of the arms that were asked.

    Args:
        call: The request.
        sockets: Socket of each arm.
        breakers: Breaker of each arm.
        vocabulary: Bytes of the tokens.
        may_hedge: Whether a request to an arm other than the candidate may be hedged now.
    """

    def __init__(
        self,
        call: Call,
        sockets: Mapping[Arm, Path],
        breakers: Mapping[Arm, Breaker],
        vocabulary: Vocabulary,
        may_hedge: Callable[[], bool],
    ) -> None:
        self.outcomes: dict[Arm, Outcome] = {}
        self._call = call
        self._began_s = time.monotonic()
        self._sockets = sockets
        self._breakers = breakers
        self._vocabulary = vocabulary
        self._may_hedge = may_hedge

    def ask(self, arm: Arm) -> AsyncGenerator[Response, None]:
        """Send the request with the time that is left, always streamed so that silence can be noticed."""
        return self._stream(arm, self._call.tensors)

    async def resume(
        self, arm: Arm, output_ids: Sequence[int], last: Response
    ) -> AsyncGenerator[Response, None]:
        """Ask for the rest of an answer.

        ``prompt_length`` separates prompt from output, so penalties, ``min_tokens``, words and noise are the
        same as in one uninterrupted answer. The counts of drafting cover only this part.
        """
        given = self._call.tensors
        num_input, num_known = given["input_ids"].size, len(output_ids)
        known = np.array(output_ids, given["input_ids"].dtype).reshape(1, -1)
        max_tokens = read_scalar(given, "request_output_len", int, 0)
        tensors = {
            **given,
            "input_ids": np.concatenate((given["input_ids"].reshape(1, -1), known), axis=1),
            "input_lengths": scalar_tensor(num_input + num_known, np.int32),
            "prompt_length": given.get("prompt_length", scalar_tensor(num_input, np.int32)),
            "request_output_len": scalar_tensor(max_tokens - num_known, np.int32),
        }
        if num_known:
            tensors.pop("return_prompt_log_probs", None)  # the client has them
        async with aclosing(self._stream(arm, tensors)) as responses:
            async for response in responses:
                yield continued(response, last)

    async def _stream(
        self, arm: Arm, tensors: Mapping[str, npt.NDArray[Any]]
    ) -> AsyncGenerator[Response, None]:
        timeout_us = self._call.timeout_us
        if timeout_us:
            timeout_us -= int(1e6 * (time.monotonic() - self._began_s))
            if timeout_us <= 0:
                raise RequestTimeoutError(
                    "the request's deadline passed before an arm answered",
                    values=f"timeout={self._call.timeout_us} microseconds, arm {arm}",
                    limit="the timeout sent with the request",
                    remedy="allow more time; the server's log says why its arms did not answer",
                )
        streamed = {**tensors, "streaming": scalar_tensor(True, np.bool_)}
        call = replace(self._call, tensors=streamed, timeout_us=timeout_us)
        async with aclosing(stream(self._sockets[arm], call)) as responses:
            async for response in responses:
                yield response

    def begin(self, arm: Arm) -> Callable[[Outcome], None]:
        """Record that an arm is asked."""
        asked = self._breakers[arm].begin(time.monotonic())

        def end(outcome: Outcome) -> None:
            self.outcomes[arm] = outcome
            asked.note(outcome, time.monotonic())

        return end

    def may_hedge(self, arm: Arm) -> bool:
        """Whether the next arm may be asked because this one is slow."""
        return arm == "candidate" or self._may_hedge()

    def output_ids(self, chunk: Response) -> Sequence[int]:
        """Return the new tokens of a response."""
        ids: list[int] = chunk[0]["output_ids"].reshape(-1).tolist()
        return ids

    def is_last(self, chunk: Response) -> bool:
        """Whether a response ends the answer."""
        return chunk[1]

    def without_first(self, chunk: Response, num_tokens: int) -> Response:
        """Return the response without its first tokens and their text."""
        return without_first(chunk, num_tokens, self._vocabulary)
