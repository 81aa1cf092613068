"""Stores observations on disk: processes append, another reads, and all may be killed at any time.

The log is a sequence of files (segments). Each is named after its offset in the whole log, as in Apache
Kafka: ``observations.jsonl.000000000000000`` and so on. So a single number says how far a reader has come,
and old segments can be deleted without moving anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import queue
import threading
from pathlib import Path

from pipelines.configuration import located
from pipelines.errors import CanaryError
from pipelines.router.observation import Observation

_LOG = logging.getLogger(__name__)

_DIGITS = 15  # a petabyte
_CLOSE_TIMEOUT_S = 5.0
_BLOCK_BYTES = 1 << 16
_OWN = 0o600  # the log contains prompts and answers


class ObservationLog:
    """Appends observations on a thread of its own, so that callers never wait for the disk.

    Observations survive the end of the process. Nothing is synced, so a crash of the machine may lose the
    latest ones.

    Attributes:
        num_dropped: Observations that were lost because the queue or the disk was full.

    Args:
        path: Path of the log without offset; its folder is created if needed.
        max_queue: Observations that may wait for the thread.
        max_segment_bytes: Size at which a new segment begins.
        max_segments: Segments to keep; older ones are deleted.
    """

    def __init__(
        self, path: Path, max_queue: int = 4096, *, max_segment_bytes: int = 1 << 24, max_segments: int = 32
    ) -> None:
        self.num_dropped = 0
        self._path = path
        self._max_segment_bytes = max_segment_bytes
        self._max_segments = max_segments
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
                self._append(observation.to_line())
                self._is_failing = False
            except Exception:  # the disk may have room again later, and the next observation may be valid
                self._count_lost()

    def _append(self, line: bytes) -> None:
        """Append a line to the newest segment."""
        while True:
            newest = _newest(self._path)
            with _open(newest) as segment:
                fcntl.flock(segment, fcntl.LOCK_EX)  # until it is closed
                if newest == _newest(self._path):  # else another process has begun the next one
                    segment.truncate(_num_whole_bytes(newest))  # without what a kill left
                    _write(segment, line)
                    self._begin_next(segment)
                    return

    def _begin_next(self, segment: io.FileIO) -> None:
        """Begin a new segment after a full one, and delete the oldest ones."""
        size = segment.seek(0, os.SEEK_END)
        if size >= self._max_segment_bytes:
            _open(_segment(self._path, _begin(Path(segment.name)) + size)).close()
            for old in _segments(self._path)[: -self._max_segments]:
                old.unlink()

    def _count_lost(self) -> None:
        self.num_dropped += 1
        if not self._is_failing:
            self._is_failing = True
            _LOG.exception("observations are lost: %s", self._path)


def read_observations(path: Path, offset: int) -> tuple[list[Observation], int]:
    """Read new observations up to the end of a segment; call again for the next segment.

    Args:
        path: Path of the log, as for ``ObservationLog``.
        offset: Where the last call ended; 0 for the oldest line.

    Returns:
        The observations of complete lines, and the offset for the next call.

    Raises:
        CanaryError: A line has another version, or the lines after ``offset`` have been deleted.
    """
    segments = _segments(path)
    if not offset:
        if not segments:
            return [], 0
        offset = _begin(segments[0])
    segment = next((each for each in reversed(segments) if _begin(each) <= offset), None)
    data = _read(segment, offset - _begin(segment)) if segment is not None else None
    if data is None:
        raise CanaryError(
            f"observations after byte {offset} of {path} were deleted before they were read; "
            f"these files are kept: {[each.name for each in segments]}",
            "abort the rollout and start a new one",
        )
    whole = data[: data.rfind(b"\n") + 1]
    try:
        return [Observation.from_line(line) for line in whole.splitlines()], offset + len(whole)
    except CanaryError as error:
        raise located(f"{segment}", error) from None


def log_end(path: Path) -> int:
    """Return the offset for a reader that wants only new observations."""
    segments = _segments(path)
    return _begin(segments[-1]) + _num_whole_bytes(segments[-1]) if segments else 0


def _segments(path: Path) -> list[Path]:
    """Return the segments, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.{'[0-9]' * _DIGITS}"))


def _begin(segment: Path) -> int:
    return int(segment.suffix[1:])


def _read(segment: Path, begin: int) -> bytes | None:
    """Return the bytes from an offset on; None if they cannot be read."""
    try:
        with segment.open("rb") as file:
            if begin > file.seek(0, os.SEEK_END):
                return None
            file.seek(begin)
            return file.read()
    except OSError:
        return None


def _newest(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return (_segments(path) or [_segment(path, 0)])[-1]


def _segment(path: Path, begin: int) -> Path:
    return path.with_name(f"{path.name}.{begin:0{_DIGITS}}")


def _open(segment: Path) -> io.FileIO:
    file = io.FileIO(segment, "a", opener=lambda path, flags: os.open(path, flags, _OWN))
    os.fchmod(file.fileno(), _OWN)  # whoever created it
    return file


def _write(file: io.FileIO, line: bytes) -> None:
    if file.write(line) != len(line):
        raise OSError(f"only a part of {len(line)} bytes could be written")


def _num_whole_bytes(segment: Path) -> int:
    """Return the length of the complete lines."""
    with segment.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            if (last := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + last + 1
            end = begin
    return 0
