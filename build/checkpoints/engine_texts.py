"""The small files that the directory of an engine gets from its checkpoint, besides the tokenizer.

``chat.json`` is the chat template, as transformers finds it: ``chat_template.jinja`` and
``additional_chat_templates/*.jinja`` come before the key ``chat_template`` of ``tokenizer_config.json``,
which is a template or a list of named ones. The names of special tokens that templates use stand in
``tokenizer_config.json`` or, in older checkpoints, in ``special_tokens_map.json``.

``sampling.json`` is what ``generation_config.json`` recommends. The keys that count are those that vLLM takes
as defaults of requests (https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html), except
``max_new_tokens``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.settings import parse_object, read_json
from build.checkpoints.tokenizer_file import GENERATION_CONFIG, MOST_TOKENIZER_BYTES
from build.recipe import DefaultSampling
from pipelines import configuration
from pipelines.errors import CheckpointError, RecipeError
from pipelines.manifest import sha256_bytes

_SPECIAL_TOKENS = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def read_engine_texts(directory: Path) -> dict[str, str]:
    """Return the content of those files that a checkpoint gives, by name.

    Args:
        directory: Checkpoint as published, with its ``tokenizer.json``.

    Raises:
        CheckpointError: A file of the checkpoint is invalid.
    """
    found = {"chat.json": read_chat_template(directory), "sampling.json": read_sampling_defaults(directory)}
    return {name: content for name, content in found.items() if content is not None}


def write_engine_texts(engine: Path, texts: Mapping[str, str]) -> None:
    """Write the files into the directory of an engine."""
    for name, content in texts.items():
        (engine / name).write_text(content, encoding="utf-8")


def engine_text_digests(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file, for the identity of an engine."""
    return {name: sha256_bytes(content.encode()) for name, content in texts.items()}


def read_chat_template(directory: Path) -> str | None:
    """Return the content of ``chat.json`` for a checkpoint; None if it has no template.

    Args:
        directory: Checkpoint as published, with its ``tokenizer.json``.

    Raises:
        CheckpointError: A file is invalid.
    """
    try:
        templates = _templates(directory)
        if not templates:
            return None
        document = {
            "templates": templates,
            "special_tokens": _special_tokens(directory),
            "special_names": _special_names(directory),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the chat template in {directory} cannot be read as a text, or as a list of objects with name "
            f"and template: {error!r:.200}",
            "download tokenizer_config.json and chat_template.jinja of the model again",
        ) from None
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _templates(directory: Path) -> dict[str, str]:
    files = {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    found = _json_of(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        return {str(each["name"]): str(each["template"]) for each in found}
    return {"default": str(found)} if found is not None else {}


def _special_tokens(directory: Path) -> dict[str, str]:
    given = {
        **_json_of(directory / "special_tokens_map.json"),
        **_json_of(directory / "tokenizer_config.json"),
    }
    found = {name: given[name] for name in _SPECIAL_TOKENS if given.get(name) is not None}
    return {
        name: str(token["content"]) if isinstance(token, dict) else str(token)
        for name, token in found.items()
    }


def _special_names(directory: Path) -> list[str]:
    added = _json_of(directory / "tokenizer.json").get("added_tokens") or []
    return [str(token["content"]) for token in added if token.get("special")]


def _json_of(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} if there is no such file."""
    if not path.is_file():
        return {}
    return parse_object(path.read_bytes(), MOST_TOKENIZER_BYTES)


def read_sampling_defaults(directory: Path) -> str | None:
    """Return the content of ``sampling.json`` for a checkpoint; None if it recommends nothing.

    Args:
        directory: Checkpoint as published.

    Raises:
        CheckpointError: ``generation_config.json`` is invalid.
    """
    path = directory / GENERATION_CONFIG
    if not path.is_file():
        return None
    document = read_json(path)
    names = (field.name for field in dataclasses.fields(DefaultSampling))
    found = {name: document[name] for name in names if document.get(name) is not None}
    remedy = "download the file again, or correct the key"
    try:
        configuration.parse(DefaultSampling, found, RecipeError, remedy).check()
    except RecipeError as error:
        raise CheckpointError(
            f"{path} recommends what no request may send: {error.message:.200}", remedy
        ) from None
    return json.dumps(found, indent=2, sort_keys=True) + "\n" if found else None
