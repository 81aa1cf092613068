"""Download one large file, and go on where an earlier run of the program stopped.

``hf_hub_download`` goes on within one run only, and compares sizes. Here ``huggingface_hub`` writes into a
part that stays beside its final place, in the hub's own cache, when a download breaks off. The file is moved
into place once its SHA-256 is right.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import WeakFileLock, get_session

from build.checkpoints.tokenizer_file import MOST_TOKENIZER_BYTES
from pipelines.errors import CheckpointError
from pipelines.manifest import sha256_file

_LOCK_S = 1.0
_READS_WEIGHTS = ContextVar("reads_weights", default=False)


@dataclass(frozen=True)
class Blob:
    """A large file on the hub.

    Attributes:
        name: Its name in the repository.
        url: Its address.
        size: Bytes.
        sha256: Hash of the content, hexadecimal.
        path: Where the cache keeps it.
        lock: File that programs lock while they download it.
    """

    name: str
    url: str
    size: int
    sha256: str
    path: Path
    lock: Path

    @property
    def part(self) -> Path:
        """Return the file that holds the beginning until the end has arrived."""
        return self.path.with_name(f"{self.path.name}.incomplete")

    @property
    def bytes_left(self) -> int:
        """Return how much is still to be downloaded."""
        if self.path.is_file():
            return 0
        return max(self.size - (self.part.stat().st_size if self.part.is_file() else 0), 0)


def bound_answers() -> None:
    """Let every answer of the hub to this process but weights end with an error behind the largest settings.

    A mirror may announce a size and send more, or send compressed what was not asked for so.
    """
    session = get_session()
    session.headers["Accept-Encoding"] = "identity"
    if _bound not in session.event_hooks["response"]:
        session.event_hooks["response"].append(_bound)


def _bound(response: httpx.Response) -> None:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise _not_taken(response, f"Content-Encoding: {encoding:.40}")
    if not _READS_WEIGHTS.get():
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Bounded(response, response.stream)


class _Bounded(httpx.SyncByteStream):
    """The content of an answer up to ``MOST_TOKENIZER_BYTES``."""

    def __init__(self, response: httpx.Response, stream: httpx.SyncByteStream) -> None:
        self._response, self._stream = response, stream

    def __iter__(self) -> Iterator[bytes]:
        num_bytes = 0
        for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > MOST_TOKENIZER_BYTES:
                raise _not_taken(self._response, f"{num_bytes} bytes, of at most {MOST_TOKENIZER_BYTES}")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _not_taken(response: httpx.Response, found: str) -> CheckpointError:
    return CheckpointError(
        f"the hub sends what is no file of settings, {response.url.path:.200}: {found}",
        "check which mirror HF_ENDPOINT names; or use another repository",
    )


class _Part(io.BufferedRandom):
    """The beginning of a file, which has arrived; it never holds more bytes than were announced."""

    def __init__(self, blob: Blob, advance: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(blob.part, "a+"))
        self._blob, self._advance = blob, advance

    def write(self, content: Any) -> int:
        """Write content behind the rest; raises CheckpointError instead of filling the disk."""
        if self.tell() + len(content) > self._blob.size:
            raise _damaged(self._blob, f"more than {self._blob.size} bytes")
        self._advance(len(content))
        return super().write(content)


def download(
    blob: Blob,
    headers: Mapping[str, str],
    advance: Callable[[int], None],
    report: Callable[[str], None],
) -> None:
    """Download a file unless it is there.

    Args:
        blob: The file.
        headers: Headers of each request; ``httpx`` removes the token when the hub redirects to another host.
        advance: Called with the number of bytes that have arrived.
        report: Called with a line before it waits for another program.

    Raises:
        CheckpointError: The content is not what the hub announced.
        HfHubHTTPError, HTTPError: The hub refused the request, or the connection broke off repeatedly.
    """
    blob.lock.parent.mkdir(parents=True, exist_ok=True)
    blob.path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(WeakFileLock(blob.lock, timeout=_LOCK_S))
        except TimeoutError:
            report(f"{blob.name}: another program downloads it; waiting for that")
            held.enter_context(WeakFileLock(blob.lock))
        if blob.path.is_file():
            return
        with _Part(blob, advance) as part:
            begin = part.tell()
            if begin < blob.size:
                asked = {**headers, "Accept-Encoding": "identity", "Range": "bytes=0-"}
                reads_weights = _READS_WEIGHTS.set(True)
                held.callback(_READS_WEIGHTS.reset, reads_weights)
                http_get(blob.url, part, resume_size=begin, headers=asked)
            part.flush()
            os.fsync(part.fileno())
        found = sha256_file(blob.part)
        if found != blob.sha256:
            raise _damaged(blob, f"{blob.part.stat().st_size} bytes with SHA-256 {found}")
        blob.part.replace(blob.path)


def _damaged(blob: Blob, found: str) -> CheckpointError:
    blob.part.unlink()
    return CheckpointError(
        f"{blob.name} is not what the hub announced, {blob.size} bytes with SHA-256 {blob.sha256}: {found}",
        "run the same command again: the file has been removed and is downloaded anew",
    )
