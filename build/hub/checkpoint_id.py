"""Name a checkpoint on the Hugging Face hub: ``hf://ORGANIZATION/NAME@REVISION``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from pipelines.errors import CheckpointError

PREFIX = "hf://"
DEFAULT_BRANCH = "main"
_ID = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.][\w./-]*))?")
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
    """

    repo: str
    revision: str = DEFAULT_BRANCH

    @classmethod
    def parse(cls, text: str) -> HubCheckpoint | None:
        """Parse a checkpoint as a recipe names it; None if it is a directory.

        Raises:
            CheckpointError: The text begins with ``hf://`` and names no repository.
        """
        if not text.startswith(PREFIX):
            return None
        match = _ID.fullmatch(text)
        if match is None or not _is_repo(match["repo"]) or ".." in (match["revision"] or ""):
            raise CheckpointError(
                f"{text} names no repository of the Hugging Face hub",
                values=text,
                limit="hf://ORGANIZATION/NAME, or hf://ORGANIZATION/NAME@REVISION; both are ASCII letters, "
                "digits, '-', '_' and '.' without '--', '..' and '.git' at the end, NAME at most 96 of them; "
                "REVISION has no '..'",
                remedy="correct the name",
            )
        return cls(match["repo"], match["revision"] or DEFAULT_BRANCH)

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}@{self.revision}"

    @property
    def name(self) -> str:
        """Return the name of the repository, without its organization."""
        return self.repo.rpartition("/")[2]

    @property
    def is_pinned(self) -> bool:
        """Return whether the revision is a commit, whose files never change."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def cache(self) -> Path:
        """Return the folder of the repository in the hub's cache.

        Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
        """
        root = Path(constants.HF_HUB_CACHE).expanduser().resolve()
        return root / f"models--{self.repo.replace('/', '--')}"

    @property
    def directory(self) -> Path:
        """Return the directory with its files, which exists after the download.

        Raises:
            CheckpointError: The revision is not a commit.
        """
        if not self.is_pinned:
            raise CheckpointError(
                f"{self} has not been downloaded",
                values=f"revision {self.revision}",
                limit="a branch or a tag becomes a commit when it is downloaded",
                remedy="run draftproof engines with this recipe first, or name the commit: "
                f"{PREFIX}{self.repo}@<40 hexadecimal digits>",
            )
        return self.cache / "snapshots" / self.revision
