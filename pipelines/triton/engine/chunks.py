"""Collects the new tokens of an answer into chunks."""

from __future__ import annotations

import math
import time

import numpy as np

from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.loop import Round
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS, Logits
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import cut_at_stop_word
from pipelines.wire.chunk import Chunk, TopLogProbs

CHUNK_INTERVAL_S = 0.02  # between two chunks of an answer (docs/explanation/architecture.md)

_NO_LOGITS: Logits = np.empty((0, 0), dtype=np.float32)


class ChunkStream:
    """Holds tokens until they may be sent: at text boundaries if streaming, otherwise at the end.

    When streaming, the first and the last chunk are sent without delay, the others at least
    ``CHUNK_INTERVAL_S`` apart.

    Args:
        vocabulary: Bytes of the tokens.
        request: The request. Its stop words are cut off the end of the text if they begin after
            ``min_tokens``.
        streaming: Whether the answer is sent in chunks.
    """

    def __init__(self, vocabulary: Vocabulary, request: GenerationRequest, *, streaming: bool) -> None:
        self._request = request
        self._vocabulary = vocabulary
        self._stop_words = request.stop_words
        num_known = len(request.input_ids) - request.num_prompt_tokens
        self._min_tokens = max(0, request.sampling.min_tokens - num_known)
        self._streaming = streaming
        self._boundary = ChunkBoundary(vocabulary, request.stop_words, self._min_tokens)
        self._held_ids: list[int] = []
        self._sent_at_s = -math.inf
        self._held_sources: list[int] = []
        self._no_log_probs = LogProbs.of(_NO_LOGITS, NO_TOKENS, request.num_log_probs or 0)
        self._held_log_probs = [self._no_log_probs]
        self._prompt_log_probs = self._no_log_probs
        self._num_sent = 0
        self._num_cached: int | None = None
        self._cum_log_prob = 0.0

    def push(self, output: Output | Round) -> Chunk | None:
        """Add new tokens.

        Args:
            output: The tokens, of the target alone or of a round of the loop.

        Returns:
            The chunk to send now, without counts of drafting; None if there is none yet. Never None for the
            last output.
        """
        ids = output.token_ids.tolist()
        is_final = bool(output.finish_reason)
        if self._num_cached is None:  # later rounds find what earlier ones computed
            self._num_cached = output.num_cached
        self._held_sources += output.token_sources.tolist() if isinstance(output, Round) else [0] * len(ids)
        if output.log_probs is not None:
            self._held_log_probs.append(output.log_probs)
        if output.prompt_log_probs is not None:
            self._prompt_log_probs = output.prompt_log_probs
        self._held_ids += self._boundary.release(ids, is_final=is_final) if self._streaming else ids
        if not is_final and not (self._held_ids and self._streaming and self._is_due()):
            return None
        return self._released(output.finish_reason)

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._sent_at_s + CHUNK_INTERVAL_S:
            return False
        self._sent_at_s = now_s
        return True

    def _released(self, finish_reason: str) -> Chunk:
        released, self._held_ids = self._held_ids, []
        num_released = len(released)
        text_length = self._text_length(released)
        self._num_sent += num_released
        whole = LogProbs.concatenate(self._held_log_probs)
        log_probs, rest = whole.take(slice(num_released)), whole.take(slice(num_released, None))
        self._held_log_probs = [rest]
        sources, self._held_sources = self._held_sources[:num_released], self._held_sources[num_released:]
        # One by one, so that the sum does not depend on the chunk boundaries.
        for log_prob in log_probs.token_log_probs.tolist():
            self._cum_log_prob += log_prob
        of_prompt, self._prompt_log_probs = self._prompt_log_probs, self._no_log_probs
        return Chunk(
            text="",
            text_length=text_length,
            output_ids=tuple(released),
            accepted_mask=tuple(map(bool, sources)),
            token_sources=tuple(sources),
            finish_reason=finish_reason,
            received_at_s=0.0,
            sequence_length=self._num_sent,
            seed=self._request.sampling.seed,
            num_cached=self._num_cached or 0,
            log_probs=tuple(log_probs.token_log_probs.tolist()),
            top_log_probs=_alternatives(log_probs),
            cum_log_prob=self._cum_log_prob,
            prompt_log_probs=tuple(of_prompt.token_log_probs.tolist()),
            prompt_top_log_probs=_alternatives(of_prompt),
            scores_prompt=self._request.prompt_log_probs,
        )

    def _text_length(self, released: list[int]) -> int:
        """Return the number of bytes of the released tokens, up to a stop word."""
        num_before = max(0, self._min_tokens - self._num_sent)
        before = self._vocabulary.join(released[:num_before])
        after = self._vocabulary.join(released[num_before:])
        return len(before) + len(cut_at_stop_word(after, self._stop_words))


def _alternatives(log_probs: LogProbs) -> TopLogProbs:
    """Return the alternatives of each token; empty if none were asked for."""
    if not log_probs.top_ids.size:
        return ()
    rows = zip(log_probs.top_ids.tolist(), log_probs.top_log_probs.tolist(), strict=True)
    return tuple(tuple(zip(ids, values, strict=True)) for ids, values in rows)
