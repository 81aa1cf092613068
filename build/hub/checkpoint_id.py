"""Name a checkpoint on the Hugging Face hub: ``hf://ORGANIZATION/NAME@REVISION``.

``hf://ORGANIZATION/NAME:FILE@REVISION`` is a GGUF file; FILE is its name, or its quantization: ``q4_k_m``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import CheckpointError

PREFIX = "hf://"
DEFAULT_BRANCH = "main"
_ID = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(:(?P<file>[\w.][\w.+/-]*))?(@(?P<revision>[\w.][\w./-]*))?")
_COMMIT = re.compile("[0-9a-f]{40}")


def _is_repo(text: str) -> bool:
    # Imported here: only recipes that name the hub wait the half second that this takes.
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


@dataclass(frozen=True)
class HubCheckpoint:
    """A checkpoint on the hub.

    Attributes:
        repo: Such as ``Qwen/Qwen3-0.6B``.
        revision: A branch, a tag or a commit.
        file: Name of a GGUF file, or its quantization; None for a checkpoint of several files.
    """

    repo: str
    revision: str = DEFAULT_BRANCH
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubCheckpoint | None:
        """Parse a checkpoint as a recipe names it; None if it is a directory.

        Raises:
            CheckpointError: The text begins with ``hf://`` and names no repository.
        """
        if not text.startswith(PREFIX):
            return None
        match = _ID.fullmatch(text)
        if match is None or not _is_repo(match["repo"]) or ".." in text:
            raise CheckpointError(
                f"{text} names no repository of the Hugging Face hub",
                "write hf://ORGANIZATION/NAME[:FILE][@REVISION]; the first two are ASCII letters, digits, "
                "'-', '_' and '.' without '--', '..' and '.git' at the end, NAME at most 96 of them; the "
                "others have no '..'",
            )
        return cls(match["repo"], match["revision"] or DEFAULT_BRANCH, match["file"])

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}{f':{self.file}' if self.file else ''}@{self.revision}"

    @property
    def name(self) -> str:
        """Return the name of the repository, without its organization, and that of the file."""
        return self.repo.rpartition("/")[2] + (f"-{self.file}" if self.file else "")

    def means(self, file: str | None) -> bool:
        """Return whether a file, or None for a checkpoint of several, is what this names."""
        if self.file is None or file is None or self.file == file:
            return self.file == file
        quantization = rf"(?i).*[^a-z0-9]{re.escape(self.file)}(-\d{{5}}-of-\d{{5}})?\.gguf"
        return re.fullmatch(quantization, f"/{file}") is not None

    @property
    def is_pinned(self) -> bool:
        """Return whether the revision is a commit, whose files never change."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def cache(self) -> Path:
        """Return the folder of the repository in the hub's cache.

        Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
        """
        from huggingface_hub import constants

        root = Path(constants.HF_HUB_CACHE).expanduser().resolve()
        return root / f"models--{self.repo.replace('/', '--')}"

    @property
    def directory(self) -> Path:
        """Return the directory with its files, or the GGUF file, which exists after the download.

        Raises:
            CheckpointError: The revision is not a commit.
        """
        if not self.is_pinned:
            raise CheckpointError(
                f"{self} has not been downloaded, so it is not known which commit {self.revision} is",
                "run draftproof engines with this recipe first, or name the commit: "
                f"{str(self).partition('@')[0]}@<40 hexadecimal digits>",
            )
        return self.cache / "snapshots" / self.revision / (self.file or "")
