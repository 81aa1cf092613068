"""New tokens of an answer, gathered into the chunks that its responses carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.stop_words import cut_at_stop_word
from pipelines.text.vocabulary import Vocabulary

_NO_LOGITS: Logits = np.empty((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class Chunk:
    """What one response carries.

    Attributes:
        token_ids: int32 [n], new since the chunk before.
        accepted_mask: bool [n], True where the token was an accepted draft token.
        log_probs: Of the tokens if asked for, else of none.
        cum_log_prob: Sum of the log probabilities of all output tokens up to here; 0 if not asked for.
        generation_logits: float32 [n, vocab_size] if asked for, else [0, 0].
        sequence_length: Output tokens so far, this chunk included.
        text_length: Bytes that the tokens spell, without a stop word and what follows it.
        finish_reason: "" until the output ends; then "stop" or "length".
        is_final: Whether it is the last chunk. A verification ends without a reason to finish: its
            output goes on in the next round.
    """

    token_ids: TokenIds
    accepted_mask: npt.NDArray[np.bool_]
    log_probs: LogProbs
    cum_log_prob: float
    generation_logits: Logits
    sequence_length: int
    text_length: int
    finish_reason: str
    is_final: bool


class ChunkStream:
    """Holds tokens until they may be sent: at text boundaries if streaming, else at the end.

    Args:
        vocabulary: Bytes of the tokens.
        request: Its stop words are cut off the end of the text, if they begin after ``min_tokens``.
        streaming: Whether anything is sent before the end.
    """

    def __init__(self, vocabulary: Vocabulary, request: GenerationRequest, *, streaming: bool) -> None:
        self._vocabulary = vocabulary
        self._stop_words = request.stop_words
        num_known = len(request.input_ids) - request.num_prompt_tokens
        self._min_tokens = max(0, request.sampling.min_tokens - num_known)
        self._streaming = streaming
        self._boundary = ChunkBoundary(vocabulary, request.stop_words, self._min_tokens)
        self._held_ids: list[int] = []
        self._held_mask: list[bool] = []
        self._held_log_probs = [LogProbs.of(_NO_LOGITS, NO_TOKENS, request.num_log_probs or 0)]
        self._held_logits: list[Logits] = []
        self._num_sent = 0
        self._cum_log_prob = 0.0

    def push(self, output: Output, num_accepted: int = 0) -> Chunk | None:
        """Add new tokens, of which the first ``num_accepted`` were draft tokens.

        Returns:
            The chunk to send now; None if there is nothing to send yet. Never None at the end.
        """
        ids = output.token_ids.tolist()
        self._held_mask.extend(position < num_accepted for position in range(len(ids)))
        if output.log_probs is not None:
            self._held_log_probs.append(output.log_probs)
        if output.generation_logits is not None:
            self._held_logits.append(output.generation_logits)
        if self._streaming:
            released = self._boundary.release(ids, is_final=output.is_final)
        else:
            self._held_ids.extend(ids)
            released = self._held_ids if output.is_final else []
        if not released and not output.is_final:
            return None
        return self._chunk(released, output)

    def _chunk(self, released: list[int], output: Output) -> Chunk:
        text_length = self._text_length(released)
        count = len(released)
        mask, self._held_mask = self._held_mask[:count], self._held_mask[count:]
        log_probs = LogProbs.concatenate(self._held_log_probs)
        self._held_log_probs = [log_probs.take(slice(count, None))]
        log_probs = log_probs.take(slice(count))
        # One by one: the sum must not depend on where the chunks end.
        for log_prob in log_probs.token_log_probs.tolist():
            self._cum_log_prob += log_prob
        logits = np.concatenate(self._held_logits) if self._held_logits else _NO_LOGITS
        self._held_logits = [logits[count:]] if self._held_logits else []
        self._num_sent += count
        return Chunk(
            token_ids=np.array(released, dtype=np.int32),
            accepted_mask=np.array(mask, dtype=np.bool_),
            log_probs=log_probs,
            cum_log_prob=self._cum_log_prob,
            generation_logits=logits[:count],
            sequence_length=self._num_sent,
            text_length=text_length,
            finish_reason=output.finish_reason,
            is_final=output.is_final,
        )

    def _text_length(self, released: list[int]) -> int:
        """Bytes of the next tokens to be sent, up to a stop word among them."""
        num_before = max(0, self._min_tokens - self._num_sent)
        before = self._vocabulary.join(released[:num_before])
        after = self._vocabulary.join(released[num_before:])
        return len(before) + len(cut_at_stop_word(after, self._stop_words))
