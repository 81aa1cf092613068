"""Find the end tokens of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.model_config import read_json
from build.checkpoints.tokenizer_file import END_TOKENS, TokenizerInfo
from pipelines.errors import CheckpointError

GENERATION_CONFIG = "generation_config.json"


def find_end_ids(directory: Path, tokenizer: TokenizerInfo, vocab_size: int) -> tuple[int, ...]:
    """Return all tokens that end a text.

    They are read from ``generation_config.json``, else from ``config.json``; if neither names any, they are
    the known end tokens of the tokenizer. ``generation_config.json`` comes first because it is often the only
    complete list: Llama 3's instruct models end at three tokens, and ``config.json`` of some releases names
    one of them. The tokenizer's own ``eos_token`` always counts, as in vLLM: chat templates end a turn with
    it, and models that were tuned for chat may keep the base model's list.

    Args:
        directory: A checkpoint of Hugging Face or TensorRT-LLM.
        tokenizer: Tokenizer of that checkpoint.
        vocab_size: Rows of its embedding.

    Returns:
        At least one id, without duplicates, in the order of the file. Callers that support a single end token
        use the first.

    Raises:
        CheckpointError: There is no end token, or an end token is not in the vocabulary.
    """
    named = _named(directory) or tokenizer.end_ids
    end_ids = tuple(dict.fromkeys([*named, *_eos_token(directory, tokenizer)]))
    num_ids = min(tokenizer.num_ids, vocab_size)
    if not end_ids or max(end_ids) >= num_ids:
        raise CheckpointError(
            f"{directory} has no valid end tokens",
            values=f"end tokens {', '.join(map(str, end_ids)) or 'none'}; {num_ids} tokens",
            limit=f"token ids in {GENERATION_CONFIG} or config.json, or one of {', '.join(END_TOKENS)} among "
            "the tokenizer's added tokens",
            remedy="set eos_token_id in config.json, or end_ids in that of a TensorRT-LLM checkpoint",
        )
    return end_ids


def _named(directory: Path) -> tuple[int, ...]:
    """Return the end tokens that the JSON files name, if any."""
    generation, config = directory / GENERATION_CONFIG, directory / "config.json"
    places = [(generation, "eos_token_id")] if generation.is_file() else []
    places += [(config, key) for key in ("eos_token_id", "end_ids", "end_id")]
    for path, key in places:
        end_ids = _ids(read_json(path), key, path)
        if end_ids:
            return end_ids
    return ()


def _eos_token(directory: Path, tokenizer: TokenizerInfo) -> list[int]:
    """Return the id of the ``eos_token`` in ``tokenizer_config.json``, if it has one."""
    path = directory / "tokenizer_config.json"
    token = read_json(path).get("eos_token") if path.is_file() else None
    name = token.get("content") if isinstance(token, dict) else token
    return [tokenizer.added_ids[name]] if isinstance(name, str) and name in tokenizer.added_ids else []


def _ids(document: Mapping[str, Any], key: str, path: Path) -> tuple[int, ...]:
    value = document.get(key)
    found = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(end_id, bool) or not isinstance(end_id, int) or end_id < 0 for end_id in found):
        raise CheckpointError(
            f"{path} has an invalid end token",
            values=f"{key}={json.dumps(value)}",
            limit="an integer of at least 0, or a list of them",
            remedy="download the file again, or correct the key",
        )
    return tuple(dict.fromkeys(found))
