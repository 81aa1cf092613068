"""Gives chunks their text, and joins and continues them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelines.text.chunk_boundary import decode_chunk
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.chunk import Chunk

_BY_TOKEN = ("output_ids", "accepted_mask", "log_probs", "top_log_probs", "token_sources")
_OF_PROMPT = ("prompt_log_probs", "prompt_top_log_probs")


def with_text(chunk: Chunk, vocabulary: Vocabulary, *, skip_special_tokens: bool = True) -> Chunk:
    """Return a chunk of an engine with its text: the first ``text_length`` bytes of its tokens.

    Names of special tokens do not count among these bytes.
    """
    if skip_special_tokens:
        text = vocabulary.join(chunk.output_ids)[: chunk.text_length]
    else:
        text = vocabulary.join_with_special(chunk.output_ids, chunk.text_length)
    return replace(chunk, text=decode_chunk(text))


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Return all chunks of an answer as one."""
    if len(chunks) == 1:
        return chunks[0]
    whole: dict[str, Any] = {
        name: tuple(value for chunk in chunks for value in getattr(chunk, name))
        for name in (*_BY_TOKEN, *_OF_PROMPT)
    }
    return replace(chunks[-1], text="".join(chunk.text for chunk in chunks), **whole)


def continued(chunk: Chunk, before: Chunk) -> Chunk:
    """Return a chunk of a continued answer with the sums of the whole; ``before`` came last before it.

    The counts of drafting stay those of the rest.
    """
    return replace(
        chunk,
        sequence_length=before.sequence_length + chunk.sequence_length,
        cum_log_prob=before.cum_log_prob + chunk.cum_log_prob,
    )
