"""Counts the requests in flight, over all routers of a server, and knows when the oldest of them arrived.

The front door and Triton's text model each have a router. A rollout is judged up to the time before which no
request is open in either, so they share a file: a slot for each process, with its number of open requests and
the arrival of the oldest.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import math
import mmap
import os
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from pipelines.errors import ServerStartError
from pipelines.process import ProcessIdentity

_UNIX_TIME_AT_ZERO_S = time.time() - time.monotonic()
_SLOT = struct.Struct("<qq16sqd")  # a process: id, start time, boot; open requests, arrival of the oldest
_NUM_SLOTS = 16

_Owner = tuple[int, int, bytes]  # as in a slot: an id alone is given to other processes and threads later


def unix_time_s() -> float:
    """Return Unix time that is monotonic even when the system clock is changed."""
    return _UNIX_TIME_AT_ZERO_S + time.monotonic()


class OpenRequests:
    """Tracks requests in flight. Not thread-safe.

    Args:
        shared: File that the routers of a server share; None for a router that is alone.
        clock: Monotonic Unix time in seconds.
    """

    def __init__(self, shared: Path | None = None, clock: Callable[[], float] = unix_time_s) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._arrived_at_s: dict[int, float] = {}  # in the order of arrival
        self._slots = bytearray(_SLOT.size) if shared is None else _mapped(shared)
        self._owner = _own_process()
        self._own = _slot_of(self._slots, self._owner)
        self._publish()

    def __len__(self) -> int:
        return sum(num_open for num_open, _ in self._of_all())

    def begin(self) -> tuple[int, float]:
        """Register a request that arrives; returns its number and the time."""
        number, arrived_at_s = next(self._numbers), self._clock()
        self._arrived_at_s[number] = arrived_at_s
        self._publish()
        return number, arrived_at_s

    def end(self, number: int) -> float:
        """Remove a request that ended.

        Returns:
            ``Observation.oldest_open_at_s`` for its observation, which must be recorded before another
            request ends: the arrival of the oldest request that is left, or the current time if none is.
        """
        del self._arrived_at_s[number]
        self._publish()
        return min((oldest_s for _, oldest_s in self._of_all()), default=self._clock())

    def _publish(self) -> None:
        oldest_s = next(iter(self._arrived_at_s.values()), math.inf)
        _SLOT.pack_into(self._slots, self._own, *self._owner, len(self._arrived_at_s), oldest_s)

    def _of_all(self) -> Iterator[tuple[int, float]]:
        """Yield number and oldest arrival of each router that lives."""
        for *owner, num_open, oldest_s in _SLOT.iter_unpack(self._slots):
            if num_open and (tuple(owner) == self._owner or _is_alive(*owner)):
                yield num_open, oldest_s


def _mapped(path: Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.ftruncate(file, _NUM_SLOTS * _SLOT.size)
        mapped = mmap.mmap(file, _NUM_SLOTS * _SLOT.size)
        owner = _own_process()
        _SLOT.pack_into(mapped, _slot_of(mapped, owner), *owner, 0, math.inf)  # while the file is locked
        return mapped
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # the mapping keeps a descriptor of its own
        os.close(file)


def _slot_of(slots: mmap.mmap | bytearray, owner: _Owner) -> int:
    """Return the offset of a process's slot, or of one whose process has ended.

    Raises:
        ServerStartError: All slots belong to other processes.
    """
    owners: list[_Owner] = [(pid, ticks, boot) for pid, ticks, boot, *_ in _SLOT.iter_unpack(slots)]
    if owner in owners:
        return owners.index(owner) * _SLOT.size
    for number, other in enumerate(owners):
        if not _is_alive(*other):
            return number * _SLOT.size
    raise ServerStartError(
        "too many routers of one server",
        values=f"processes {', '.join(str(pid) for pid, *_ in owners)}",
        limit=f"{_NUM_SLOTS} routers at a time",
        remedy="end those that are not needed: one front door and one text model are usual",
    )


def _own_process() -> _Owner:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None  # it runs
    return identity.pid, identity.start_ticks, _boot()


def _is_alive(pid: int, start_ticks: int, boot: bytes) -> bool:
    return boot == _boot() and ProcessIdentity(pid, start_ticks).is_alive


@functools.cache
def _boot() -> bytes:
    """Return the id of this run of the machine, which tells equal processes of two runs apart."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()).bytes
