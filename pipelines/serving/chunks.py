"""New tokens of an answer, gathered into the chunks that its responses carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.token_ids import TokenIds
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.stop_words import cut_at_stop_word
from pipelines.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Chunk:
    """What one response carries.

    Attributes:
        token_ids: int32 [n], new since the chunk before.
        accepted_mask: bool [n], True where the token was an accepted draft token.
        sequence_length: Output tokens so far, this chunk included.
        text_length: Bytes that the tokens spell, without a stop word and what follows it.
        finish_reason: "" until the output ends; then "stop" or "length".
        is_final: Whether it is the last chunk. A verification ends without a reason to finish: its
            output goes on in the next round.
    """

    token_ids: TokenIds
    accepted_mask: npt.NDArray[np.bool_]
    sequence_length: int
    text_length: int
    finish_reason: str
    is_final: bool


class ChunkStream:
    """Holds tokens until they may be sent: at text boundaries if streaming, else at the end.

    Args:
        vocabulary: Bytes of the tokens.
        stop_words: Cut off the end of the text.
        streaming: Whether anything is sent before the end.
    """

    def __init__(self, vocabulary: Vocabulary, stop_words: tuple[bytes, ...], *, streaming: bool) -> None:
        self._vocabulary = vocabulary
        self._stop_words = stop_words
        self._streaming = streaming
        self._boundary = ChunkBoundary(vocabulary, stop_words)
        self._held_ids: list[int] = []
        self._held_mask: list[bool] = []
        self._num_sent = 0

    def push(
        self, token_ids: TokenIds, num_accepted: int, finish_reason: str, *, is_final: bool
    ) -> Chunk | None:
        """Add new tokens, of which the first ``num_accepted`` were draft tokens.

        Returns:
            The chunk to send now; None if there is nothing to send yet. Never None at the end.
        """
        ids = token_ids.tolist()
        self._held_mask.extend(position < num_accepted for position in range(len(ids)))
        if self._streaming:
            released = self._boundary.release(ids, is_final=is_final)
        else:
            self._held_ids.extend(ids)
            released = self._held_ids if is_final else []
        if not released and not is_final:
            return None
        count = len(released)
        mask, self._held_mask = self._held_mask[:count], self._held_mask[count:]
        self._num_sent += count
        text = self._vocabulary.join(released)
        return Chunk(
            token_ids=np.array(released, dtype=np.int32),
            accepted_mask=np.array(mask, dtype=np.bool_),
            sequence_length=self._num_sent,
            text_length=len(cut_at_stop_word(text, self._stop_words)),
            finish_reason=finish_reason,
            is_final=is_final,
        )
