"""Reads the chat template of a checkpoint, as transformers finds it, for ``chat.json`` of an engine.

``chat_template.jinja`` and ``additional_chat_templates/*.jinja`` come before the key ``chat_template`` of
``tokenizer_config.json``, which is a template or a list of named ones. The names of special tokens that
templates use stand in ``tokenizer_config.json`` or, in older checkpoints, in ``special_tokens_map.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.errors import CheckpointError

FILE_NAME = "chat.json"

_SPECIAL_TOKENS = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


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
            f"the chat template in {directory} cannot be read",
            values=repr(error),
            limit="chat_template is a text, or a list of objects with name and template",
            remedy="download tokenizer_config.json and chat_template.jinja of the model again",
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
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
