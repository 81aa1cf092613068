"""What a build needs to know of a ``tokenizer.json``: its identity and the tokens that may end a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.manifest import sha256_json
from pipelines.errors import CheckpointError

# What decides which ids a text becomes and back; padding and truncation are the caller's business.
_IDENTITY = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>")
"""Names under which the end of a text, a turn or a message is known in the families supported."""


@dataclass(frozen=True)
class TokenizerInfo:
    """Identity of a tokenizer.

    Attributes:
        sha256: Hash of everything that decides ids, indifferent to the file's layout.
        num_tokens: Highest id + 1.
        end_ids: Ids of the known end tokens that it has.
    """

    sha256: str
    num_tokens: int
    end_ids: tuple[int, ...]


def read_tokenizer(path: Path) -> TokenizerInfo:
    """Read a Hugging Face ``tokenizer.json``.

    Raises:
        CheckpointError: It is missing or not a tokenizer.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        added = {str(token["content"]): int(token["id"]) for token in document.get("added_tokens", [])}
        vocabulary = document["model"]["vocab"]
        # Unigram models list [piece, score]; the id is the position.
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        num_tokens = 1 + max((*ids, *added.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a tokenizer",
            values=f"{type(error).__name__}: {error}",
            limit="a checkpoint directory holds the tokenizer.json of its model",
            remedy="copy tokenizer.json from the model's source into the checkpoint directory",
        ) from None
    end_ids = tuple(added[token] for token in END_TOKENS if token in added)
    return TokenizerInfo(sha256_json({key: document.get(key) for key in _IDENTITY}), num_tokens, end_ids)
