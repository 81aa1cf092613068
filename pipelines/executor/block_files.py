"""Keeps contents of blocks in files, which may be read, damaged and removed at any time.

A file has the name of its content: a digest of the engine, of the machine's kernels and of the tokens (see
``stored_blocks``). It ends with a digest of name and content, so whatever was torn, cut off, exchanged or
changed is found out when it is read, and no write needs to wait for the disk. There is no index: a name that
is not in the folder is a miss, the time of a file says when it was last used, and several servers may share a
folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pipelines.errors import RecipeError

_LOG = logging.getLogger(__name__)

MOST_BYTES = 20 * 10**9
"""Limit without a setting, or a tenth of the free disk if that is less."""

PAUSE_S = 60.0
"""Time without writes after one has failed."""

_TAG = "CACHEDIR.TAG"  # bford.info/cachedir: programs that make backups leave such folders out
_TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# prompts of Draftproof's users; may be removed\n"
_SUFFIX = ".block"
_UNFINISHED = ".part"
_UNFINISHED_S = 600.0  # after which nobody writes such a file any more
_DIGEST_BYTES = 32
_NUM_READERS = 32  # a request of each of two engines; one that waits for another would look slow
_COUNT_SHARE = 0.05  # of the limit, after which the files of other servers are counted, too
_KEPT_SHARE = 0.9  # of the limit, when files are removed


class BlockFiles:
    """The files of one folder, of all engines that use it.

    Attributes:
        folder: The folder.
        limit_bytes: Most bytes of files; 0 until ``counted``.
        counted: Done when the files were counted for the first time, on ``writer``: a server with 100,000
            of them would start half a second later.
        num_bytes: Bytes of files when they were counted last, and of those written since.
        num_files: The same in files.
        num_damaged: Files that were removed because they were not whole.
        num_failures: Reads and writes that the disk refused.
        readers: Threads for ``read``.
        writer: Thread for ``write``.

    Args:
        folder: See the attribute; made if it does not exist.
        limit_bytes: See the attribute; None for the default.

    Raises:
        RecipeError: The folder holds other files.
        OSError: It cannot be read or made.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        _claim(folder)
        self.folder = folder
        self.num_damaged = self.num_failures = self.num_files = self.num_bytes = 0
        self.readers = ThreadPoolExecutor(_NUM_READERS, "blocks from disk")
        self.writer = ThreadPoolExecutor(1, "blocks to disk", initializer=_yield_to_steps)
        self._own = f".{secrets.token_hex(4)}{_UNFINISHED}"
        self._num_new_bytes = 0  # since the files were counted
        self._paused_until_s = 0.0
        self._said: set[str] = set()
        self.limit_bytes = 0
        self.counted = self.writer.submit(self._begin, limit_bytes)

    @property
    def takes_writes(self) -> bool:
        """Whether no write has failed within ``PAUSE_S``."""
        return time.monotonic() >= self._paused_until_s

    def read(self, name: str, num_bytes: int, depth: int = 0) -> memoryview | None:
        """Return a content and note that it was used. Runs on ``readers``; never raises.

        Args:
            name: Name of the content.
            num_bytes: Its size.
            depth: Contents without which nobody needs it. They are removed after it, if they were used
                together.

        Returns:
            The content; None if it is not there.
        """
        path = self._path(name)
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                found = memoryview(file.read(num_bytes + _DIGEST_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note_failure("cannot be read", error)
            return None
        content = found[:num_bytes]
        if found[num_bytes:] != _checksum(name, content):
            self.num_damaged += 1
            self.say("damaged", f"has a damaged file, which is removed: {path.name}")
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # of a folder that may only be read
            _note_use(path, depth)
        return content

    def write(self, name: str, content: bytes, depth: int = 0) -> None:
        """Write a content, or note that it was used if it is there. Runs on ``writer``; never raises.

        Args:
            name: Name of the content.
            content: The content.
            depth: See ``read``.
        """
        path = self._path(name)
        unfinished = path.with_suffix(self._own)
        try:
            with suppress(FileNotFoundError):
                _note_use(path, depth)
                return
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
                    file.write(content)
                    file.write(_checksum(name, content))
                _note_use(unfinished, depth)
                unfinished.replace(path)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._paused_until_s = time.monotonic() + PAUSE_S
            self._note_failure("cannot be written", error)
            return
        num_bytes = len(content) + _DIGEST_BYTES
        self.num_files += 1
        self.num_bytes += num_bytes
        self._num_new_bytes += num_bytes
        if self.num_bytes > self.limit_bytes or self._num_new_bytes > _COUNT_SHARE * self.limit_bytes:
            self._keep_within_limit()

    def _path(self, name: str) -> Path:
        return self.folder / (name + _SUFFIX)

    def _begin(self, limit_bytes: int | None) -> None:
        self._count()
        if limit_bytes is None:
            limit_bytes = min(MOST_BYTES, (shutil.disk_usage(self.folder).free + self.num_bytes) // 10)
        self.limit_bytes = limit_bytes

    def _count(self) -> list[tuple[float, int, str]]:
        """Count the files of all servers; return time, size and path of each."""
        found = list(self._found())
        self._num_new_bytes = 0
        self.num_files, self.num_bytes = len(found), sum(num_bytes for _, num_bytes, _ in found)
        return found

    def _keep_within_limit(self) -> None:
        """Remove the files that were not used for longest, if all are above the limit."""
        found = self._count()
        if self.num_bytes <= self.limit_bytes:
            return
        for _, num_bytes, path in sorted(found):
            if self.num_bytes <= _KEPT_SHARE * self.limit_bytes:
                break
            with suppress(OSError):
                Path(path).unlink()
                self.num_files -= 1
                self.num_bytes -= num_bytes

    def _found(self) -> Iterator[tuple[float, int, str]]:
        """Yield time, size and path of each file, and remove what a killed server has left."""
        oldest_s = time.time() - _UNFINISHED_S
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another server has removed it
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        yield status.st_mtime, status.st_size, entry.path
                    elif entry.name.endswith(_UNFINISHED) and status.st_mtime < oldest_s:
                        Path(entry.path).unlink()

    def _note_failure(self, what: str, error: OSError) -> None:
        self.num_failures += 1
        self.say(what, f"{what}, and prompts are computed instead: {error}")

    def say(self, kind: str, what: str) -> None:
        """Log what is wrong with the folder, once for each kind of problem."""
        if kind not in self._said:
            self._said.add(kind)
            _LOG.warning("the prompt cache %s %s (said once)", self.folder, what)


def _claim(folder: Path) -> None:
    """Make a folder and mark it as a prompt cache, unless it is one.

    Raises:
        RecipeError: It holds other files.
        OSError: It cannot be read or made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tag = folder / _TAG
    found = tag.read_text(encoding="utf-8", errors="replace") if tag.is_file() else None
    if found != _TAG_TEXT:
        # Another server is writing it, or the power was cut.
        is_begun = found is not None and _TAG_TEXT.startswith(found)
        others = next(folder.iterdir(), None)
        if others is not None and not is_begun:
            raise RecipeError(
                f"the folder of the prompt cache holds other files: {others}",
                "name a folder of its own as serving.prompt_cache_dir, or with --prompt-cache-dir",
            )
        tag.write_text(_TAG_TEXT, encoding="utf-8")
    with suppress(OSError):  # of a folder that may only be read
        folder.chmod(0o700)


def _note_use(path: Path, depth: int) -> None:
    """Set the time of a file's last use, a second earlier for each content that it needs."""
    now_s = time.time() - depth
    os.utime(path, (now_s, now_s))


def _checksum(name: str, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(name.encode())
    digest.update(content)
    return digest.digest()


def _yield_to_steps() -> None:
    """Let all other threads come before this one."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
