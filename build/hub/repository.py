"""Look at a repository of the hub before it is downloaded: its commit, its files and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.utils import disable_progress_bars, logging

from build import hub
from build.checkpoints.tokenizer_file import SENTENCEPIECE
from build.hub.checkpoint_id import HubCheckpoint
from build.hub.failures import explained
from pipelines.errors import CheckpointError

_REQUIRED = ("config.json", "tokenizer.json")
_SETTINGS = (
    *_REQUIRED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model.safetensors.index.json",
)


@dataclass(frozen=True)
class Repository:
    """A repository at one commit; its settings and its tokenizer are on this machine.

    Attributes:
        checkpoint: Its name, with the commit as revision.
        files: Names of all its files on the hub.
    """

    checkpoint: HubCheckpoint
    files: Sequence[str]


def open_repository(checkpoint: HubCheckpoint) -> Repository:
    """Find the commit of a revision, and download the settings and the tokenizer: a few small files.

    Without the hub, the revision is the commit that was downloaded last.

    Raises:
        CheckpointError: The hub does not answer or refuses, a file is missing, or ``HF_HUB_OFFLINE`` is set
            and the files are not on this machine.
    """
    if hub.MALFORMED is not None:
        raise hub.MALFORMED
    disable_progress_bars()
    logging.set_verbosity_error()  # its warnings speak of options that this project does not have
    with explained(checkpoint):
        directory = Path(
            snapshot_download(checkpoint.repo, revision=checkpoint.revision, allow_patterns=list(_SETTINGS))
        )
    pinned = replace(checkpoint, revision=directory.name)
    try:
        files = [file.path for file in get_cached_repo_tree(pinned.repo, revision=pinned.revision)]
    except CachedRepoTreeNotFoundError:  # offline, and an older version of the library filled the cache
        files = [path.name for path in directory.iterdir()]
    missing = [name for name in _REQUIRED if name not in files]
    if missing:
        raise CheckpointError(
            f"{checkpoint.repo} has no {' and no '.join(missing)}",
            values=f"{len(files)} files: {', '.join(sorted(files)[:6])}",
            limit=f"{', '.join(_REQUIRED)} and weights in safetensors",
            remedy="download the repository into a directory and name that: the error then has the command "
            f"that converts {SENTENCEPIECE}"
            if missing == ["tokenizer.json"] and SENTENCEPIECE in files
            else "use a repository in the form of transformers, such as the one that this was made from",
        )
    return Repository(pinned, files)
