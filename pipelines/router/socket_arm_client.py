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
from pipelines.wire.calls import Call, Tensors, stream
from pipelines.wire.tensors import read_scalar, scalar_tensor

Response = tuple[Tensors, bool]

# Outputs with one entry per token of the response: name -> axis of the tokens.
_BY_TOKEN = {
    "output_ids": 2,
    "output_log_probs": 2,
    "top_log_prob_ids": 1,
    "top_log_probs": 1,
    "accepted_mask": 1,
    "token_sources": 1,
}

# The same for tokens of the prompt; empty after the first response.
_BY_PROMPT_TOKEN = {"prompt_log_probs": 2, "prompt_top_log_prob_ids": 1, "prompt_top_log_probs": 1}

# Outputs that accumulate over the answer.
_SUMS = ("sequence_length", "cum_log_probs")


class SocketArmClient:
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
            async for outputs, is_last in responses:
                whole = {
                    name: (outputs[name] + last[0][name]).astype(outputs[name].dtype)
                    for name in _SUMS
                    if name in outputs
                }
                yield {**outputs, **whole}, is_last

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
        outputs, is_last = chunk
        cut_off = self._vocabulary.join(self.output_ids(chunk)[:num_tokens])
        text_length = max(0, int(outputs["text_length"].item()) - len(cut_off))
        cut: dict[str, npt.NDArray[Any]] = {"text_length": scalar_tensor(text_length, np.int32)}
        for name, axis in _BY_TOKEN.items():
            if name in outputs and outputs[name].size:
                cut[name] = np.delete(outputs[name], np.s_[:num_tokens], axis=axis)
        for name, axis in _BY_PROMPT_TOKEN.items():
            if name in outputs:  # the client has them
                cut[name] = np.delete(outputs[name], np.s_[:], axis=axis)
        return {**outputs, **cut}, is_last


def joined(responses: Sequence[Response]) -> Response:
    """Join all responses of an answer into one."""
    outputs, is_last = responses[-1]
    text_length = sum(int(each["text_length"].item()) for each, _ in responses)
    whole: dict[str, npt.NDArray[Any]] = {"text_length": scalar_tensor(text_length, np.int32)}
    for name, axis in (_BY_TOKEN | _BY_PROMPT_TOKEN).items():
        if name in outputs:
            whole[name] = np.concatenate([each[name] for each, _ in responses], axis=axis)
    return {**outputs, **whole}, is_last
