"""The small files that the directory of an engine gets from its checkpoint, besides the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from build.checkpoints import chat_template_file, sampling_defaults_file
from build.checkpoints.chat_template_file import read_chat_template
from build.checkpoints.sampling_defaults_file import read_sampling_defaults
from pipelines.manifest import sha256_bytes


def read_engine_texts(directory: Path) -> dict[str, str]:
    """Return the content of those files that a checkpoint gives, by name.

    Args:
        directory: Checkpoint as published, with its ``tokenizer.json``.

    Raises:
        CheckpointError: A file of the checkpoint is invalid.
    """
    found = {
        chat_template_file.FILE_NAME: read_chat_template(directory),
        sampling_defaults_file.FILE_NAME: read_sampling_defaults(directory),
    }
    return {name: content for name, content in found.items() if content is not None}


def write_engine_texts(engine: Path, texts: Mapping[str, str]) -> None:
    """Write the files into the directory of an engine."""
    for name, content in texts.items():
        (engine / name).write_text(content, encoding="utf-8")


def engine_text_digests(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file, for the identity of an engine."""
    return {name: sha256_bytes(content.encode()) for name, content in texts.items()}
