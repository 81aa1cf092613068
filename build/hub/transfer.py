"""Download one large file, and go on where an earlier attempt stopped.

``huggingface_hub`` deletes what it has of a file when a download breaks off. Here the part stays beside its
final place, in the hub's own cache, and the rest is requested by ``Range``. The file is moved into place
once its SHA-256 is right.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, get_session, hf_raise_for_status

from build.checkpoints.tokenizer_file import MOST_TOKENIZER_BYTES
from pipelines.errors import CheckpointError

_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_ATTEMPTS = 5  # in a row without a new byte
_PAUSE_S = 1.0
_LOCK_S = 1.0
_BUSY = (429, 500, 502, 503, 504)
_OF_WEIGHTS = "draftproof_weights"


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
        raise _not_taken(response, f"Content-Encoding: {encoding:.40}", "what is not compressed")
    if _OF_WEIGHTS not in response.request.extensions:
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
                raise _not_taken(self._response, f"{num_bytes} bytes", f"at most {MOST_TOKENIZER_BYTES}")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _not_taken(response: httpx.Response, values: str, limit: str) -> CheckpointError:
    return CheckpointError(
        "the hub sends what is no file of settings",
        values=f"{response.url.path:.200}: {values}",
        limit=limit,
        remedy="check which mirror HF_ENDPOINT names; or use another repository",
    )


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
        CheckpointError: The connection broke off repeatedly, or the content is not what the hub announced.
        HfHubHTTPError: The hub refused the request.
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
        with blob.part.open("a+b") as file:
            _complete(blob, file, headers, advance)
            file.flush()
            os.fsync(file.fileno())
        blob.part.replace(blob.path)


def _complete(blob: Blob, file: BinaryIO, headers: Mapping[str, str], advance: Callable[[int], None]) -> None:
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    failures = 0
    while file.tell() < blob.size:
        before = file.tell()
        try:
            for chunk in _rest(blob, before, headers):
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
                if file.tell() > blob.size:  # or it would fill the disk
                    break
            problem = "the server closed the connection"
        except httpx.TransportError as error:
            problem = type(error).__name__
        except HfHubHTTPError as error:
            if error.response.status_code not in _BUSY:
                raise
            problem = f"HTTP {error.response.status_code}"
        failures = 1 if file.tell() > before else failures + 1
        if file.tell() < blob.size and failures >= _ATTEMPTS:
            raise CheckpointError(
                f"the download of {blob.name} broke off",
                values=f"{problem}; {file.tell()} of {blob.size} bytes have arrived",
                limit=f"{_ATTEMPTS} attempts in a row brought nothing",
                remedy="run the same command again: it goes on where this one stopped",
            )
        if file.tell() < blob.size:
            time.sleep(_PAUSE_S)
    if file.tell() != blob.size or digest.hexdigest() != blob.sha256:
        blob.part.unlink()
        raise CheckpointError(
            f"{blob.name} is not what the hub announced",
            values=f"{file.tell()} bytes with SHA-256 {digest.hexdigest()}",
            limit=f"{blob.size} bytes with SHA-256 {blob.sha256}",
            remedy="run the same command again: the file has been removed and is downloaded anew",
        )


def _rest(blob: Blob, begin: int, headers: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the content from byte ``begin`` on."""
    asked = {**headers, "Accept-Encoding": "identity", "Range": f"bytes={begin}-"}
    of_weights = {_OF_WEIGHTS: True}
    with get_session().stream(
        "GET", blob.url, headers=asked, timeout=_TIMEOUT_S, extensions=of_weights
    ) as response:
        hf_raise_for_status(response)
        sent = response.headers.get("Content-Range", "")
        is_whole = response.status_code == 200  # a mirror may not know ranges
        if not is_whole and not sent.startswith(f"bytes {begin}-"):
            raise CheckpointError(
                f"the download of {blob.name} cannot go on",
                values=f"HTTP {response.status_code}, Content-Range: {sent or 'none'}",
                limit=f"the bytes from {begin} on, or all of them",
                remedy="check whether a proxy or mirror stands between this machine and the hub",
            )
        skipped = begin if is_whole else 0
        for chunk in response.iter_raw():  # without a buffer, whose content a break would lose
            yield chunk[skipped:]
            skipped = max(skipped - len(chunk), 0)
