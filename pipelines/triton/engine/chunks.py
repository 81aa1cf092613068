"""Collects the new tokens of an answer into the chunks of its responses."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.stop_words import cut_at_stop_word
from pipelines.text.vocabulary import Vocabulary

CHUNK_INTERVAL_S = 0.02  # between two chunks of an answer (docs/decisions/gateway.md)

_NO_LOGITS: Logits = np.empty((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class Chunk:
    """The content of one response.

    Attributes:
        token_ids: int32 [n], tokens since the previous chunk.
        sources: int32 [n], where each token came from (``speculation.loop.TOKEN_SOURCES``).
        log_probs: Log probabilities of the tokens; empty if not requested.
        prompt_log_probs: Those of the prompt without its first token; empty if not requested, or sent before.
        cum_log_prob: Sum of the log probabilities of all output tokens so far; 0 if not requested.
        generation_logits: float32 [n, vocab_size]; [0, 0] if not requested.
        sequence_length: Output tokens so far, including this chunk.
        text_length: Bytes of the tokens' text, without a stop word and what follows it.
        finish_reason: "" until the output ends, then "stop" or "length".
        is_final: Whether this is the last chunk. A verification has no finish reason, since its output
            continues in the next round.
    """

    token_ids: TokenIds
    sources: npt.NDArray[np.int32]
    log_probs: LogProbs
    prompt_log_probs: LogProbs
    cum_log_prob: float
    generation_logits: Logits
    sequence_length: int
    text_length: int
    finish_reason: str
    is_final: bool


class ChunkStream:
    """Holds tokens until they may be sent: at text boundaries if streaming, otherwise at the end.

    When streaming, the first and the last chunk are sent without delay, the others at least
    ``CHUNK_INTERVAL_S`` apart.

    Args:
        vocabulary: Bytes of the tokens.
        request: The request. Its stop words are cut off the end of the text if they begin after
            ``min_tokens``.
        streaming: Whether chunks are sent before the end.
    """

    def __init__(self, vocabulary: Vocabulary, request: GenerationRequest, *, streaming: bool) -> None:
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
        self._held_logits: list[Logits] = []
        self._prompt_log_probs = self._no_log_probs
        self._num_sent = 0
        self._cum_log_prob = 0.0

    def push(self, output: Output, sources: npt.NDArray[np.int32] | None = None) -> Chunk | None:
        """Add new tokens, and where they came from; from the target without ``sources``.

        Returns:
            The chunk to send now, or None if there is none yet. Never None for the last output.
        """
        ids = output.token_ids.tolist()
        self._held_sources += [0] * len(ids) if sources is None else sources.tolist()
        if output.log_probs is not None:
            self._held_log_probs.append(output.log_probs)
        if output.prompt_log_probs is not None:
            self._prompt_log_probs = output.prompt_log_probs
        if output.generation_logits is not None:
            self._held_logits.append(output.generation_logits)
        self._held_ids += self._boundary.release(ids, is_final=output.is_final) if self._streaming else ids
        if not output.is_final and not (self._held_ids and self._streaming and self._is_due()):
            return None
        released, self._held_ids = self._held_ids, []
        return self._chunk(released, output)

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._sent_at_s + CHUNK_INTERVAL_S:
            return False
        self._sent_at_s = now_s
        return True

    def _chunk(self, released: list[int], output: Output) -> Chunk:
        text_length = self._text_length(released)
        count = len(released)
        sources, self._held_sources = self._held_sources[:count], self._held_sources[count:]
        log_probs = LogProbs.concatenate(self._held_log_probs)
        self._held_log_probs = [log_probs.take(slice(count, None))]
        log_probs = log_probs.take(slice(count))
        # One by one, so that the sum does not depend on the chunk boundaries.
        for log_prob in log_probs.token_log_probs.tolist():
            self._cum_log_prob += log_prob
        logits = np.concatenate(self._held_logits) if self._held_logits else _NO_LOGITS
        self._held_logits = [logits[count:]] if self._held_logits else []
        self._num_sent += count
        prompt_log_probs, self._prompt_log_probs = self._prompt_log_probs, self._no_log_probs
        return Chunk(
            token_ids=np.array(released, dtype=np.int32),
            sources=np.array(sources, dtype=np.int32),
            log_probs=log_probs,
            prompt_log_probs=prompt_log_probs,
            cum_log_prob=self._cum_log_prob,
            generation_logits=logits[:count],
            sequence_length=self._num_sent,
            text_length=text_length,
            finish_reason=output.finish_reason,
            is_final=output.is_final,
        )

    def _text_length(self, released: list[int]) -> int:
        """Return the number of bytes of the released tokens, up to a stop word."""
        num_before = max(0, self._min_tokens - self._num_sent)
        before = self._vocabulary.join(released[:num_before])
        after = self._vocabulary.join(released[num_before:])
        return len(before) + len(cut_at_stop_word(after, self._stop_words))
