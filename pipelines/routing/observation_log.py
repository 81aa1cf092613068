"""Observations on disk: one process appends them, another follows, and both may be killed at any time.

The log is a row of files (segments), each named by the offset in the whole log at which it begins, as
Apache Kafka names its segments: ``observations.jsonl.000000000000000`` and so on. So one number says how
far a reader came, and old segments go without moving anything.
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

from pipelines.errors import CanaryError
from pipelines.routing.observation import Observation
from pipelines.routing.strict_json import located

_LOG = logging.getLogger(__name__)

_DIGITS = 15  # a petabyte
_CLOSE_TIMEOUT_S = 5.0
_BLOCK_BYTES = 1 << 16


class ObservationLog:
    """Appends observations on a thread of its own; whoever notes one never waits for the disk.

    One process appends at a time. Another one, such as a model that Triton loads anew before it unloads the
    old, holds its observations back until the first has ended. What was appended survives the end of the
    process; nothing is synced, so the end of the machine may take the latest.

    Attributes:
        num_dropped: Observations that the log lacks: the queue was full, or the disk.

    Args:
        path: Without the offsets; its folder is made if it is missing.
        max_queue: Observations that wait for the thread.
        max_segment_bytes: After which a new segment begins.
        max_segments: Kept; older ones are removed.
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
        """Append it soon; dropped and counted if too many wait."""
        try:
            self._queue.put_nowait(observation)
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Append what waits, then end the thread; nothing may be put any more."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_TIMEOUT_S)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        segment: io.FileIO | None = None
        while (observation := self._queue.get()) is not None:
            try:
                segment = segment or _open_last(self._path)
                _write(segment, observation.to_line())
                if segment.tell() >= self._max_segment_bytes:
                    segment = self._next(segment)
                self._is_failing = False
            except Exception:  # a disk that is full may have room again, and the next one may have no defect
                self._note_loss()
                if segment is not None:
                    segment.close()
                    segment = None
        if segment is not None:
            segment.close()

    def _next(self, segment: io.FileIO) -> io.FileIO:
        """Begin a new segment, and remove what is too old."""
        begin = _begin(Path(segment.name)) + segment.tell()
        following = _open_locked(_segment(self._path, begin))
        segment.close()
        for old in _segments(self._path)[: -self._max_segments]:
            old.unlink()
        return following

    def _note_loss(self) -> None:
        self.num_dropped += 1
        if not self._is_failing:
            self._is_failing = True
            _LOG.exception("observations are lost: %s", self._path)


def read_observations(path: Path, offset: int) -> tuple[list[Observation], int]:
    """What was appended since, up to the end of a segment: call again for what follows.

    Args:
        path: As for ``ObservationLog``.
        offset: Where the last call ended; 0 for the oldest line that is kept.

    Returns:
        Observations of whole lines, and where to go on. A line that is still being written waits.

    Raises:
        CanaryError: A line is of another version, or those after ``offset`` are gone.
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
            "observations are gone that were not read yet",
            values=f"read up to byte {offset} of {path}; kept are {[each.name for each in segments]}",
            limit="the reader must come back before the log drops its oldest segment",
            remedy="abort the rollout and begin a new one",
        )
    whole = data[: data.rfind(b"\n") + 1]
    try:
        return [Observation.from_line(line) for line in whole.splitlines()], offset + len(whole)
    except CanaryError as error:
        raise located(f"{segment}", error) from None


def log_end(path: Path) -> int:
    """Where a reader begins that wants only what comes from now on."""
    segments = _segments(path)
    return _begin(segments[-1]) + _num_whole_bytes(segments[-1]) if segments else 0


def _segments(path: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path.parent.glob(f"{path.name}.{'[0-9]' * _DIGITS}"))


def _begin(segment: Path) -> int:
    return int(segment.suffix[1:])


def _read(segment: Path, begin: int) -> bytes | None:
    """The bytes from there on; None if they cannot be had."""
    try:
        with segment.open("rb") as file:
            if begin > file.seek(0, os.SEEK_END):
                return None
            file.seek(begin)
            return file.read()
    except OSError:
        return None


def _open_last(path: Path) -> io.FileIO:
    """The newest segment, without what a process that was killed, or a full disk, left of its last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        segment = (_segments(path) or [_segment(path, 0)])[-1]
        file = _open_locked(segment)
        if _segments(path)[-1:] == [segment]:
            file.truncate(_num_whole_bytes(segment))
            return file
        file.close()  # whoever held it has begun another one


def _segment(path: Path, begin: int) -> Path:
    return path.with_name(f"{path.name}.{begin:0{_DIGITS}}")


def _open_locked(segment: Path) -> io.FileIO:
    """To append; waits until no other process does."""
    file = io.FileIO(segment, "a")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _write(file: io.FileIO, line: bytes) -> None:
    if file.write(line) != len(line):
        raise OSError(f"only a part of {len(line)} bytes could be written")


def _num_whole_bytes(segment: Path) -> int:
    """Length of its whole lines."""
    with segment.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            if (last := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + last + 1
            end = begin
    return 0
