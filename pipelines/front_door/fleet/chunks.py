"""Cuts and joins chunks of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelines.client.generation import Chunk
from pipelines.text.chunk_boundary import decode_chunk
from pipelines.text.vocabulary import Vocabulary

_OF_PROMPT = ("prompt_log_probs", "prompt_top_log_probs")
_BY_TOKEN = ("output_ids", "accepted_mask", "log_probs", "top_log_probs", "token_sources")
_LONGEST = 1 << 31  # bytes


def without_first(
    chunk: Chunk, num_tokens: int, vocabulary: Vocabulary, *, skip_special_tokens: bool
) -> Chunk:
    """Return a chunk without its first tokens and their text; another chunk ended where they end."""
    ids = chunk.output_ids[:num_tokens]
    text = vocabulary.join(ids) if skip_special_tokens else vocabulary.join_with_special(ids, _LONGEST)
    cut: dict[str, Any] = {name: getattr(chunk, name)[num_tokens:] for name in _BY_TOKEN}
    nothing: dict[str, Any] = dict.fromkeys(_OF_PROMPT, ())  # the client has them
    return replace(chunk, text=chunk.text[len(decode_chunk(text)) :], **cut, **nothing)


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Return all chunks of an answer as one."""
    whole: dict[str, Any] = {
        name: tuple(value for chunk in chunks for value in getattr(chunk, name))
        for name in (*_BY_TOKEN, *_OF_PROMPT)
    }
    return replace(chunks[-1], text="".join(chunk.text for chunk in chunks), **whole)
