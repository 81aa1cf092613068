"""Long prompts of code that the demonstration pair was not trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from build.quantization.corpus import load_corpus
from pipelines.command_line.prompt_lengths import read_tokenizer
from pipelines.errors import InvalidRequestError
from pipelines.speculation.token_ids import TokenIds


def held_out_texts(tokenizer_of: Path, num_texts: int, length: int) -> list[TokenIds]:
    """Return the beginnings of equal parts of the standard library's held-out modules.

    Args:
        tokenizer_of: Directory with the ``tokenizer.json`` that splits them.
        num_texts: Number of parts.
        length: Tokens of each beginning.

    Returns:
        int32 [length] each.

    Raises:
        InvalidRequestError: The modules are too short.
    """
    text = "\n\n".join(document.text for document in load_corpus().held_out)
    token_ids = np.array(read_tokenizer(tokenizer_of).encode(text), np.int32)
    if num_texts * length > len(token_ids):
        raise InvalidRequestError(
            "there is too little held-out code",
            values=f"{num_texts} texts of {length:,} tokens",
            limit=f"{len(token_ids):,} tokens in all",
            remedy="use fewer or shorter texts",
        )
    starts = np.arange(num_texts) * (len(token_ids) // num_texts)
    return [token_ids[start : start + length] for start in starts]
