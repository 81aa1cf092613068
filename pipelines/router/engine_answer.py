"""Collects the chunks of an engine's answer as a client would."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.router.observation import Difference
from pipelines.router.received_answer import ReceivedAnswer
from pipelines.speculation.token_ids import count_accepted
from pipelines.wire.chunk import Chunk, TopLogProbs
from pipelines.wire.messages import EngineRequest, encoded


class EngineAnswer(ReceivedAnswer):
    """The chunks of one answer, joined as a client joins them.

    Args:
        is_stream: Whether the client receives each chunk as it comes.
    """

    def __init__(self, *, is_stream: bool) -> None:
        super().__init__(is_stream=is_stream)
        self._output_ids: list[int] = []
        self._text = ""
        self._log_probs: list[float] = []
        self._top_log_probs: TopLogProbs = ()
        self._cum_log_prob = 0.0
        self._contradiction = ""  # the first one between a chunk and those before it
        self._last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk, with its text."""
        self._last = chunk
        self._output_ids.extend(chunk.output_ids)
        self._text += chunk.text
        self._log_probs.extend(chunk.log_probs)
        self._top_log_probs += chunk.top_log_probs
        self._contradiction = self._contradiction or self._contradicted_by(chunk)
        if self._output_ids:
            self._note_part()

    @property
    def text(self) -> str:
        """Text of all chunks."""
        return self._text

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all chunks."""
        return len(self._output_ids)

    @property
    def rounds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See ``ReceivedAnswer``; of the engine that sent the last chunk."""
        return self._whole.drafted_per_round, self._whole.accepted_per_round

    def told(self, what: Difference) -> Any:
        """Return what must be equal, also whether its chunks contradict each other."""
        if what == "tokens":
            return self._output_ids
        if what == "text":
            return self._text
        if what == "chunks":
            return self._contradiction
        if what == "log_probs":
            return self._scores() if self._log_probs else {}
        return getattr(self._whole, what)

    def num_common(self, other: ReceivedAnswer) -> int:
        """Return the number of tokens that both have in common at the start."""
        ours, theirs = self._output_ids, other.told("tokens")
        return count_accepted(np.array(ours, np.int32), np.array(theirs, np.int32))

    @property
    def _whole(self) -> Chunk:
        assert self._last is not None
        return self._last

    def _scores(self) -> dict[str, Any]:
        return {
            "cum_log_prob": self._whole.cum_log_prob,
            "log_probs": self._log_probs,
            "top_log_probs": self._top_log_probs,
        }

    def _contradicted_by(self, chunk: Chunk) -> str:
        """Describe how a chunk contradicts the earlier ones; "" if it does not."""
        said, received = chunk.sequence_length, len(self._output_ids)
        if said != received:
            return f"sequence_length={said} after {received} tokens"
        if not chunk.log_probs:
            return ""
        if len(chunk.log_probs) != len(chunk.output_ids):
            return f"{len(chunk.log_probs)} log probabilities of {len(chunk.output_ids)} tokens"
        for value in chunk.log_probs:  # one by one, in the order in which the server sums them
            self._cum_log_prob += value
        if self._cum_log_prob != chunk.cum_log_prob:
            own_sum = f"log probabilities of {self._cum_log_prob:.9g}"
            return f"cum_log_probs={chunk.cum_log_prob:.9g} after {own_sum}"
        return ""


def prompt_id(request: EngineRequest) -> str:
    """Hash everything that determines an answer: prompt, limits, sampling, and the seed unless greedy."""
    sampling = replace(request.sampling, seed=0) if request.sampling.is_greedy else request.sampling
    of_the_answer = replace(
        request,
        sampling=sampling,
        request_id="",
        timeout_us=0,
        streaming=True,
        session_id="",
        num_draft_tokens=None,
        prediction_ids=(),
    )
    return hashlib.blake2b(encoded(of_the_answer), digest_size=16).hexdigest()
