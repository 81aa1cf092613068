"""Passes observations from the router's process to the controller's, through an SQLite file.

Both may be killed at any time. What the controller has stored elsewhere is deleted at its next look, so the
file stays small.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.configuration import located
from pipelines.errors import CanaryError
from pipelines.router.observation import Observation

_LOG = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_BUSY_S = 10.0
_MOST_PAGES = 1 << 17  # of 4 KiB; what does not fit is lost until the controller has read the rest
_OWN = 0o600  # the file contains prompts and answers


class ObservationLog:
    """Appends observations on a thread of its own, so that callers never wait for the disk.

    Observations survive the end of the process. Nothing is synced, so a crash of the machine may lose the
    latest ones.

    Attributes:
        num_dropped: Observations that were lost because the queue, the log or the disk was full.

    Args:
        path: Path of the file; it and its folder are created if needed.
        max_queue: Observations that may wait for the thread.
    """

    def __init__(self, path: Path, max_queue: int = 4096) -> None:
        self.num_dropped = 0
        self._path = path
        self._queue: queue.Queue[Observation | None] = queue.Queue(max_queue)
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="observations", daemon=True)
        self._thread.start()

    def put(self, observation: Observation) -> None:
        """Queue an observation; it is dropped and counted if the queue is full."""
        try:
            self._queue.put_nowait(observation)
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Append the queued observations and end the thread; ``put`` must not be called any more."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_TIMEOUT_S)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (observation := self._queue.get()) is not None:
            try:
                append(self._path, [observation])
                self._is_failing = False
            except Exception:  # the disk may have room again later, and the next observation may be valid
                self._count_lost()

    def _count_lost(self) -> None:
        self.num_dropped += 1
        if not self._is_failing:
            self._is_failing = True
            _LOG.exception("observations are lost: %s", self._path)


def append(path: Path, observations: Sequence[Observation]) -> None:
    """Append all observations to a log, or none.

    Raises:
        ValueError: A number is not finite.
        sqlite3.Error: The file cannot be written, or would be larger than 512 MiB.
        OSError: It cannot be created.
    """
    rows = [(each.to_json(),) for each in observations]
    with _opened(path) as connection:
        connection.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
        connection.executemany("INSERT INTO observation (content) VALUES (?)", rows)


def read_observations(path: Path, offset: int) -> tuple[list[Observation], int]:
    """Read new observations, and delete those before them.

    Args:
        path: The file of an ``ObservationLog``.
        offset: Where the last call ended, whose observations are stored elsewhere; 0 for the oldest.

    Returns:
        The observations, and the offset for the next call.

    Raises:
        CanaryError: The file cannot be read, is another one, or has an observation of another version.
    """
    try:
        with _opened(path) as connection:
            if offset > _end(connection):
                raise CanaryError(
                    f"observations up to number {offset} were read, and {path} has {_end(connection)}",
                    "abort the rollout and start a new one",
                )
            connection.execute("DELETE FROM observation WHERE number <= ?", (offset,))
            rows = connection.execute("SELECT number, content FROM observation ORDER BY number").fetchall()
    except (sqlite3.Error, OSError) as error:
        raise _unreadable(path, error) from None
    try:
        return [Observation.of_json(content) for _, content in rows], rows[-1][0] if rows else offset
    except CanaryError as error:
        raise located(path, error) from None


def log_end(path: Path) -> int:
    """Return the offset for a reader that wants only new observations.

    Raises:
        CanaryError: The file cannot be read.
    """
    try:
        with _opened(path) as connection:
            return _end(connection)
    except (sqlite3.Error, OSError) as error:
        raise _unreadable(path, error) from None


def _end(connection: sqlite3.Connection) -> int:
    """Return the number of the latest observation, which may be deleted."""
    return int(connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()[0])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file, and commit at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(_OWN)
    path.chmod(_OWN)  # whoever created it
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS observation (number INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB)"
        )
        with connection:
            yield connection


def _unreadable(path: Path, error: Exception) -> CanaryError:
    return CanaryError(
        f"observations cannot be read from {path}: {error}",
        "correct what is named, or abort the rollout and start a new one",
    )
