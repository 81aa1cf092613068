"""Read a repository of the hub: its commit, its files and settings, and then its weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from huggingface_hub import (
    get_cached_repo_tree,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, logging

from build.checkpoints.settings import read_json
from build.checkpoints.tokenizer_file import MOST_TOKENIZER_BYTES, SENTENCEPIECE
from build.files import Need, check_space
from build.gguf.file import part_names
from build.hub.checkpoint_id import PREFIX, HubCheckpoint
from build.hub.failures import explained
from build.hub.transfer import Blob, bound_answers, download
from build.hugging_face.head import is_head
from build.hugging_face.weights import weight_names
from pipelines.errors import CheckpointError
from pipelines.time_left import TimeLeft

_SHA256 = re.compile("[0-9a-f]{64}")
_GB = 1e9

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

    def missing_names(self) -> list[str]:
        """Return the names of those weights that are not on this machine.

        Raises:
            CheckpointError: The repository has no weights in safetensors, or lacks a part of them.
        """
        directory = self.checkpoint.cache / "snapshots" / self.checkpoint.revision
        if self.checkpoint.file is not None:
            names = tuple(part_names(self.checkpoint.file))
        else:
            names = weight_names(directory, self.checkpoint.repo, self.files)
        return [name for name in names if not (directory / name).is_file()]

    def missing_weights(self) -> list[Blob]:
        """Return those weights that are not on this machine; the hub is asked for their sizes and hashes.

        Raises:
            CheckpointError: As for ``missing_names``, or the hub does not answer.
        """
        names = self.missing_names()
        with explained(self.checkpoint):
            return [_blob(self.checkpoint, name) for name in names]

    def download(self, blobs: Sequence[Blob], report: Callable[[str], None]) -> None:
        """Download weights, and link them into the directory of the checkpoint.

        Args:
            blobs: What ``missing_weights`` returned.
            report: Called with a line about the progress every few seconds.

        Raises:
            CheckpointError: The download broke off. What has arrived is kept, but not in that directory.
        """
        if not blobs:
            return
        repo, revision = self.checkpoint.repo, self.checkpoint.revision
        total = sum(blob.bytes_left for blob in blobs)
        report(f"{repo}: downloading {total / _GB:.2f} GB of weights, commit {revision}")
        progress = TimeLeft(total, report, lambda done: f"{repo}: {done / _GB:.2f} of {total / _GB:.2f} GB")
        with explained(self.checkpoint):
            for blob in blobs:
                download(blob, build_hf_headers(), progress.advance, report)
                hf_hub_download(repo, blob.name, revision=revision)  # links to the blob


def open_repository(checkpoint: HubCheckpoint) -> Repository:
    """Find the commit of a revision, and download the settings and the tokenizer: a few small files.

    A GGUF file is downloaded whole: its settings come with its weights. Without the hub, the revision is the
    commit that was downloaded last.

    Raises:
        CheckpointError: The hub does not answer or refuses, a file is missing, or ``HF_HUB_OFFLINE`` is set
            and the files are not on this machine.
        RecipeError: The disk does not hold a GGUF file.
    """
    bound_answers()
    disable_progress_bars()
    logging.set_verbosity_error()  # its warnings speak of options that this project does not have
    with explained(checkpoint):  # first the commit and its list of files
        directory = Path(snapshot_download(checkpoint.repo, revision=checkpoint.revision, allow_patterns=[]))
    pinned = replace(checkpoint, revision=directory.name)
    try:
        sizes = {file.path: file.size for file in get_cached_repo_tree(pinned.repo, revision=pinned.revision)}
    except CachedRepoTreeNotFoundError:  # offline, and an older version of the library filled the cache
        sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    files = list(sizes)
    if checkpoint.file is None:
        _check_sizes(pinned.repo, sizes)
        with explained(checkpoint):
            snapshot_download(pinned.repo, revision=pinned.revision, allow_patterns=list(_SETTINGS))
    if checkpoint.file is not None:
        return _downloaded(Repository(replace(pinned, file=_chosen(checkpoint, files)), files))
    missing = [name for name in _REQUIRED if name not in files]
    if missing == ["tokenizer.json"] and is_head(read_json(directory / "config.json")):
        missing = []  # a trained head reads the target's tokens
    if missing:
        raise CheckpointError(
            f"{checkpoint.repo} has no {' and no '.join(missing)} among {len(files)} files: "
            f"{', '.join(sorted(files)[:6])}",
            "download the repository into a directory and name that: the error then has the command "
            f"that converts {SENTENCEPIECE}"
            if missing == ["tokenizer.json"] and SENTENCEPIECE in files
            else "use a repository in the form of transformers, such as the one that this was made from"
            + (f", or name a GGUF file: {PREFIX}{checkpoint.repo}:q4_k_m" if _gguf_files(files) else ""),
        )
    return Repository(pinned, files)


def _check_sizes(repo: str, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if size > MOST_TOKENIZER_BYTES and any(fnmatch(name, pattern) for pattern in _SETTINGS):
            raise CheckpointError(
                f"{repo}: {name} has {size} bytes, and a file of settings at most {MOST_TOKENIZER_BYTES}",
                "use another repository",
            )


def _gguf_files(files: Sequence[str]) -> list[str]:
    """Return the names of the GGUF files among others; of split files, those of the first parts."""
    return sorted({part_names(name)[0] for name in files if name.endswith(".gguf")})


def _chosen(checkpoint: HubCheckpoint, files: Sequence[str]) -> str:
    """Return the name of the GGUF file that a checkpoint means, or of its first part."""
    present = _gguf_files(files)
    fitting = [name for name in present if checkpoint.means(name)]
    if len(fitting) != 1:
        raise CheckpointError(
            f"{checkpoint.repo} has {len(fitting) or 'no'} GGUF files that {checkpoint.file} means: "
            f"{', '.join((fitting or present)[:9]) or 'no GGUF files'}",
            "name one of these files, whole or by the quantization at the end of its name",
        )
    return fitting[0]


def _downloaded(repository: Repository) -> Repository:
    """Return a repository after its GGUF file has been downloaded."""
    lost = [name for name in part_names(repository.checkpoint.file or "") if name not in repository.files]
    if lost:
        raise CheckpointError(
            f"{repository.checkpoint.repo} lacks a part of a split file: {', '.join(lost[:3])}",
            "use another file or another revision",
        )
    blobs = repository.missing_weights()
    size = sum(blob.bytes_left for blob in blobs)
    check_space([Need(repository.checkpoint.repo, repository.checkpoint.cache, size, "HF_HOME")])
    repository.download(blobs, partial(print, flush=True))
    return repository


def _blob(checkpoint: HubCheckpoint, name: str) -> Blob:
    url = hf_hub_url(checkpoint.repo, name, revision=checkpoint.revision)
    found = get_hf_file_metadata(url)
    if found.etag is None or found.size is None or not _SHA256.fullmatch(found.etag):
        raise CheckpointError(
            f"the hub announces no SHA-256 of {checkpoint.repo}/{name}: ETag {found.etag}, size {found.size}",
            "download the repository into a directory, and name that instead",
        )
    cache = checkpoint.cache
    lock = cache.parent / ".locks" / cache.name / f"{found.etag}.lock"
    return Blob(name, url, found.size, found.etag, cache / "blobs" / found.etag, lock)
