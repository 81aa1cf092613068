"""Which tokens end a text, as a checkpoint directory says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.model_config import read_json
from build.tokenizer_file import END_TOKENS, TokenizerInfo
from pipelines.errors import CheckpointError

GENERATION_CONFIG = "generation_config.json"


def find_end_ids(directory: Path, tokenizer: TokenizerInfo) -> tuple[int, ...]:
    """All tokens that end a text, from the first of three places that names any.

    What a model was tuned to end with stands in ``generation_config.json``, and often there alone: Llama 3's
    instruct models end at three tokens, of which ``config.json`` of some releases has one. Next comes
    ``config.json``, and then every known end token of the tokenizer.

    Args:
        directory: A checkpoint, Hugging Face's or TensorRT-LLM's.
        tokenizer: Of that checkpoint.

    Returns:
        At least one id, in the order of the place, each once; the first is for whoever takes only one.

    Raises:
        CheckpointError: No place names one, or one that is named is no token.
    """
    end_ids = _named(directory) or tokenizer.end_ids
    if not end_ids or max(end_ids) >= tokenizer.num_tokens:
        raise CheckpointError(
            f"{directory} does not say which tokens end a text",
            values=f"end tokens {', '.join(map(str, end_ids)) or 'none'}; {tokenizer.num_tokens} tokens",
            limit=f"tokens, named by {GENERATION_CONFIG} or config.json; else one of {', '.join(END_TOKENS)} "
            "among those that the tokenizer adds",
            remedy="set eos_token_id in config.json, or end_ids if the checkpoint is TensorRT-LLM's",
        )
    return end_ids


def _named(directory: Path) -> tuple[int, ...]:
    """What the files say; none if they do not."""
    generation, config = directory / GENERATION_CONFIG, directory / "config.json"
    places = [(generation, "eos_token_id")] if generation.is_file() else []
    places += [(config, key) for key in ("eos_token_id", "end_ids", "end_id")]
    for path, key in places:
        end_ids = _ids(read_json(path), key, path)
        if end_ids:
            return end_ids
    return ()


def _ids(document: Mapping[str, Any], key: str, path: Path) -> tuple[int, ...]:
    value = document.get(key)
    found = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(end_id, bool) or not isinstance(end_id, int) or end_id < 0 for end_id in found):
        raise CheckpointError(
            f"{path} names an end of text that is no token",
            values=f"{key}={json.dumps(value)}",
            limit="a whole number of at least 0, or a list of them",
            remedy="copy the file again from the model's source, or correct the key",
        )
    return tuple(dict.fromkeys(found))
