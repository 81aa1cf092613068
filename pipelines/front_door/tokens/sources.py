"""Says which part of an answer's text came from the draft model, lookup, the grammar, or the target."""

from __future__ import annotations

from typing import Any

from pipelines.client.generation import TOKEN_SOURCES, Chunk
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.tokens.texts import texts_of_tokens


def runs_by_source(model: ServedModel, chunk: Chunk) -> list[dict[str, Any]]:
    """Return the text of a chunk in runs of tokens from one source; the joined texts are the chunk's."""
    runs: list[dict[str, Any]] = []
    for text, number in zip(texts_of_tokens(model, chunk), chunk.token_sources, strict=True):
        source = TOKEN_SOURCES[number]
        if not runs or runs[-1]["source"] != source:
            runs.append({"source": source, "num_tokens": 0, "text": ""})
        runs[-1]["num_tokens"] += 1
        runs[-1]["text"] += text
    return runs
