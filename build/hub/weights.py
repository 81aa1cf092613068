"""Download the weights of a repository, with the time that is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.utils import build_hf_headers

from build.hub.checkpoint_id import HubCheckpoint
from build.hub.failures import explained
from build.hub.repository import Repository
from build.hub.transfer import Blob, download
from build.hugging_face.weight_files import weight_names
from pipelines.errors import CheckpointError
from pipelines.time_left import TimeLeft

_SHA256 = re.compile("[0-9a-f]{64}")
_GB = 1e9


def missing_names(repository: Repository) -> list[str]:
    """Return the names of those weights that are not on this machine.

    Raises:
        CheckpointError: The repository has no weights in safetensors, or lacks a part of them.
    """
    directory = repository.checkpoint.directory
    names = weight_names(directory, repository.checkpoint.repo, repository.files)
    return [name for name in names if not (directory / name).is_file()]


def missing_weights(repository: Repository) -> list[Blob]:
    """Return those weights that are not on this machine; the hub is asked for their sizes and hashes.

    Raises:
        CheckpointError: As for ``missing_names``, or the hub does not answer.
    """
    names = missing_names(repository)
    with explained(repository.checkpoint):
        return [_blob(repository.checkpoint, name) for name in names]


def _blob(checkpoint: HubCheckpoint, name: str) -> Blob:
    url = hf_hub_url(checkpoint.repo, name, revision=checkpoint.revision)
    found = get_hf_file_metadata(url)
    if found.etag is None or found.size is None or not _SHA256.fullmatch(found.etag):
        raise CheckpointError(
            f"the hub announces no SHA-256 of {checkpoint.repo}/{name}",
            values=f"ETag {found.etag}, size {found.size}",
            limit="weights are stored with Git LFS or Xet, whose ETag is the SHA-256",
            remedy="download the repository into a directory, and name that instead",
        )
    cache = checkpoint.cache
    lock = cache.parent / ".locks" / cache.name / f"{found.etag}.lock"
    return Blob(name, url, found.size, found.etag, cache / "blobs" / found.etag, lock)


def download_weights(repository: Repository, blobs: Sequence[Blob], report: Callable[[str], None]) -> None:
    """Download weights, and link them into the directory of the checkpoint.

    Args:
        repository: The repository.
        blobs: What ``missing_weights`` returned.
        report: Called with a line about the progress every few seconds.

    Raises:
        CheckpointError: The download broke off. What has arrived is kept, but not in that directory.
    """
    if not blobs:
        return
    checkpoint = repository.checkpoint
    total = sum(blob.bytes_left for blob in blobs)
    report(f"{checkpoint.repo}: downloading {total / _GB:.2f} GB of weights, commit {checkpoint.revision}")
    progress = TimeLeft(
        total, report, lambda done: f"{checkpoint.repo}: {done / _GB:.2f} of {total / _GB:.2f} GB"
    )
    with explained(checkpoint):
        for blob in blobs:
            download(blob, build_hf_headers(), progress.advance, report)
            hf_hub_download(checkpoint.repo, blob.name, revision=checkpoint.revision)  # links to the blob
