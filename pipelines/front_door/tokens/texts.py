"""Divides the text of a chunk among its tokens."""

from __future__ import annotations

import codecs

from pipelines.client.generation import Chunk
from pipelines.front_door.served_model import ServedModel


def texts_of_tokens(model: ServedModel, chunk: Chunk) -> list[str]:
    """Return the text of each token; the joined texts are the chunk's.

    A character of several tokens belongs to the one that completes it. Tokens behind a stop word have none.

    Args:
        model: The model.
        chunk: A chunk; its tokens end at a character.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    vocabulary = model.tokenizer.vocabulary
    texts: list[str] = []
    left = chunk.text
    for token_id in chunk.output_ids:
        text = decoder.decode(vocabulary.join([token_id]))
        if not text and (special := vocabulary.special.get(token_id)):
            text = special.decode() if left.startswith(special.decode()) else ""
        text, left = left[: len(text)], left[len(text) :]
        texts.append(text)
    if texts:  # a character that the answer's end cut off
        texts[-1] += decoder.decode(b"", final=True)[: len(left)]
    return texts
