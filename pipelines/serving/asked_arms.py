"""The arms as one request meets them: each a socket, with what becomes of asking there."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.routing.arms import Arm
from pipelines.routing.breaker import Breaker, Outcome
from pipelines.serving.inputs import read_scalar
from pipelines.serving.local_calls import Call, Tensors, stream
from pipelines.serving.triton_wire import scalar_tensor
from pipelines.text.vocabulary import Vocabulary

Response = tuple[Tensors, bool]

# Outputs with an entry for each token of the response: name -> axis of the tokens.
_BY_TOKEN = {
    "output_ids": 2,
    "output_log_probs": 2,
    "top_log_prob_ids": 1,
    "top_log_probs": 1,
    "accepted_mask": 1,
}

# Outputs that are sums over the output so far.
_SUMS = ("sequence_length", "cum_log_probs")


class AskedArms:
    """What ``answer_over`` asks for one request.

    Attributes:
        outcomes: Of the arms that were asked, as far as they are known.

    Args:
        call: What is asked of each.
        sockets: Of the arms.
        breakers: Of the arms.
        vocabulary: Bytes of the tokens.
        may_hedge: Whether another arm than the candidate may be helped out now.
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
        """The request from its start, in the time that is left; streamed, so that silence tells something."""
        return self._stream(arm, self._call.tensors)

    async def go_on(
        self, arm: Arm, output_ids: Sequence[int], last: Response
    ) -> AsyncGenerator[Response, None]:
        """What follows these tokens.

        ``prompt_length`` tells prompt from output, so penalties, ``min_tokens``, words and noise are as in
        one answer. Counts of drafting are of this part alone.
        """
        given = self._call.tensors
        num_prompt, num_known = given["input_ids"].size, len(output_ids)
        known = np.array(output_ids, given["input_ids"].dtype).reshape(1, -1)
        max_tokens = read_scalar(given, "request_output_len", int, 0)
        tensors = {
            **given,
            "input_ids": np.concatenate((given["input_ids"].reshape(1, -1), known), axis=1),
            "input_lengths": scalar_tensor(num_prompt + num_known, np.int32),
            "prompt_length": scalar_tensor(num_prompt, np.int32),
            "request_output_len": scalar_tensor(max_tokens - num_known, np.int32),
        }
        async with aclosing(self._stream(arm, tensors)) as responses:
            async for outputs, is_last in responses:
                whole = {
                    name: (outputs[name] + last[0][name]).astype(outputs[name].dtype)
                    for name in _SUMS
                    if name in outputs
                }
                yield {**outputs, **whole}, is_last

    def _stream(self, arm: Arm, tensors: Mapping[str, npt.NDArray[Any]]) -> AsyncGenerator[Response, None]:
        timeout_us = self._call.timeout_us
        if timeout_us:
            timeout_us = max(1, timeout_us - int(1e6 * (time.monotonic() - self._began_s)))
        streamed = {**tensors, "streaming": scalar_tensor(True, np.bool_)}
        return stream(self._sockets[arm], replace(self._call, tensors=streamed, timeout_us=timeout_us))

    def begin(self, arm: Arm) -> Callable[[Outcome], None]:
        """Note that an arm is asked."""
        asked = self._breakers[arm].begin(time.monotonic())

        def end(outcome: Outcome) -> None:
            self.outcomes[arm] = outcome
            asked.note(outcome, time.monotonic())

        return end

    def may_hedge(self, arm: Arm) -> bool:
        """Whether the next arm may be asked because this one is slow."""
        return arm == "candidate" or self._may_hedge()

    def output_ids(self, chunk: Response) -> Sequence[int]:
        """New tokens of a response."""
        ids: list[int] = chunk[0]["output_ids"].reshape(-1).tolist()
        return ids

    def is_last(self, chunk: Response) -> bool:
        """Whether the answer ends with it."""
        return chunk[1]

    def without_first(self, chunk: Response, num_tokens: int) -> Response:
        """The response less its first tokens; the text that they spell goes with them."""
        outputs, is_last = chunk
        cut_off = self._vocabulary.join(self.output_ids(chunk)[:num_tokens])
        text_length = max(0, int(outputs["text_length"].item()) - len(cut_off))
        cut: dict[str, npt.NDArray[Any]] = {"text_length": scalar_tensor(text_length, np.int32)}
        for name, axis in _BY_TOKEN.items():
            if name in outputs and outputs[name].size:
                cut[name] = np.delete(outputs[name], np.s_[:num_tokens], axis=axis)
        return {**outputs, **cut}, is_last


def joined(responses: Sequence[Response]) -> Response:
    """One response instead of all those of an answer."""
    outputs, is_last = responses[-1]
    text_length = sum(int(each["text_length"].item()) for each, _ in responses)
    whole: dict[str, npt.NDArray[Any]] = {"text_length": scalar_tensor(text_length, np.int32)}
    for name, axis in _BY_TOKEN.items():
        if name in outputs:
            whole[name] = np.concatenate([each[name] for each, _ in responses], axis=axis)
    return {**outputs, **whole}, is_last
