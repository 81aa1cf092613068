"""The state of rollouts in one SQLite file.

Each cycle of the controller is one transaction, so one that is killed while it writes leaves the last
complete state. Only the controller changes a rollout (``orders.sole_controller``); the command line adds
orders, and any process may read. Rollouts that have ended stay in the file for their reports.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pipelines.canary.controller.evidence import Collected
from pipelines.canary.controller.phases import Order, Position
from pipelines.canary.controller.rollout import Progress, Rollout, from_text, to_text, weights_at
from pipelines.canary.judge.resources import Sample
from pipelines.canary.report.record import RolloutRecord, Transition
from pipelines.errors import CanaryError
from pipelines.router.observation import Observation

VERSION = 9
APPLICATION = 0x64726166  # "draf", identifies the file as one of Draftproof
BUSY_S = 10.0
_OWN = 0o600  # the file contains prompts and answers

_NOTHING = Collected()
_LOG = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE rollout (number INTEGER PRIMARY KEY, canary_id TEXT UNIQUE, document TEXT, progress TEXT);
CREATE TABLE transition (number INTEGER PRIMARY KEY, canary_id TEXT, document TEXT);
CREATE TABLE request (number INTEGER PRIMARY KEY, canary_id TEXT, document TEXT);
CREATE TABLE sample (number INTEGER PRIMARY KEY, canary_id TEXT, document TEXT);
CREATE TABLE orders (number INTEGER PRIMARY KEY, canary_id TEXT, word TEXT, is_taken INTEGER);
CREATE INDEX request_of ON request (canary_id);
"""


class Store:
    """The state file of the rollouts of one server.

    Every method raises CanaryError if the file cannot be read or written, such as on a full disk.

    Args:
        path: State file; it is created if it is missing.

    Raises:
        CanaryError: The file belongs to another program or version, or cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            is_claimed = _marks(self._connection) == (APPLICATION, VERSION)
        except sqlite3.Error as error:
            raise self._failed(error) from None
        if not is_claimed:  # otherwise a reader need not wait for the controller
            with self._transaction():
                self._claim()
        path.chmod(_OWN)

    @classmethod
    def existing(cls, path: Path) -> Store:
        """Open a state file that exists.

        Raises:
            CanaryError: The file does not exist, or as for the class.
        """
        if not path.is_file():
            raise _no_rollout(f"{path} does not exist")
        return cls(path)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def begin(self, rollout: Rollout, offset: int = 0) -> None:
        """Add a rollout in phase ``preflight``.

        Args:
            rollout: Rollout with a new ``canary_id``.
            offset: End of the router's observation log.
        """
        position = Position("preflight", rollout.began_at_s)
        weights = weights_at(position, rollout.plan)
        begun = Transition(rollout.began_at_s, "", "preflight", "started", {}, weights)
        with self._transaction():
            progress = to_text(Progress(position, rollout.generation + 1, offset=offset))
            self._write("INSERT INTO rollout (canary_id, document, progress) VALUES (?, ?, ?)",
                        rollout.canary_id, to_text(rollout), progress)  # fmt: skip
            self._insert("transition", rollout.canary_id, begun)

    def latest(self) -> Rollout | None:
        """Return the rollout that was started last."""
        row = self._read("SELECT document FROM rollout ORDER BY number DESC LIMIT 1")
        return from_text(Rollout, row[0][0]) if row else None

    def progress(self, rollout: Rollout) -> Progress:
        """Return the progress of a rollout."""
        row = self._read("SELECT progress FROM rollout WHERE canary_id = ?", rollout.canary_id)
        return from_text(Progress, row[0][0])

    def advance(
        self,
        rollout: Rollout,
        progress: Progress,
        found: Collected = _NOTHING,
        transition: Transition | None = None,
        order: int | None = None,
    ) -> None:
        """Write everything that one cycle found and decided, or nothing of it.

        Args:
            rollout: Rollout to advance.
            progress: New progress.
            found: New evidence.
            transition: Change of phase, if there was one.
            order: Number of the order that was carried out, if any.
        """
        canary_id = rollout.canary_id
        with self._transaction():
            for request in found.requests:
                self._insert("request", canary_id, request)
            for sample in found.samples:
                self._insert("sample", canary_id, sample)
            if transition is not None:
                self._insert("transition", canary_id, transition)
            if order is not None:
                self._write("UPDATE orders SET is_taken = 1 WHERE number = ?", order)
            self._write("UPDATE rollout SET progress = ? WHERE canary_id = ?", to_text(progress), canary_id)

    def give(self, rollout: Rollout, order: Order) -> None:
        """Add an order for the controller."""
        with self._transaction():
            self._write("INSERT INTO orders (canary_id, word, is_taken) VALUES (?, ?, 0)",
                        rollout.canary_id, order)  # fmt: skip

    def next_order(self, rollout: Rollout) -> tuple[int, Order] | None:
        """Return number and word of the oldest order that has not been carried out."""
        rows = self._read(
            "SELECT number, word FROM orders WHERE canary_id = ? AND NOT is_taken ORDER BY number LIMIT 1",
            rollout.canary_id,
        )
        return (rows[0][0], cast(Order, rows[0][1])) if rows else None

    def requests(self, rollout: Rollout) -> list[Observation]:
        """Return all requests so far, including those before which others may still be missing."""
        return [from_text(Observation, text) for text in self._documents("request", rollout)]

    def samples(self, rollout: Rollout) -> list[Sample]:
        """Return all samples in the order of time."""
        return [from_text(Sample, text) for text in self._documents("sample", rollout)]

    def record(self) -> RolloutRecord:
        """Return everything that is known about the latest rollout.

        Raises:
            CanaryError: There is no rollout.
        """
        rollout = self.latest()
        if rollout is None:
            raise _no_rollout(f"{self._path} contains none")
        with self._transaction("DEFERRED"):  # a consistent snapshot
            progress = self.progress(rollout)
            requests = self.requests(rollout)
            samples = self.samples(rollout)
            transitions = self._documents("transition", rollout)
        return RolloutRecord(
            rollout,
            progress.position.phase,
            tuple(from_text(Transition, text) for text in transitions),
            tuple(each for each in requests if each.arrived_at_s < progress.complete_until_s),
            tuple(samples),
        )

    def _claim(self) -> None:
        application, version = _marks(self._connection)
        if (application, version) == (APPLICATION, VERSION):  # another process was faster
            return
        if application or version or self._read("SELECT name FROM sqlite_master"):
            seen = f"version {version}" if application == APPLICATION else "not written by Draftproof"
            raise self._unreadable(seen)
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._write(statement)
        self._write(f"PRAGMA application_id = {APPLICATION}")
        self._write(f"PRAGMA user_version = {VERSION}")

    def _unreadable(self, seen: str) -> CanaryError:
        return CanaryError(
            f"{self._path} is no state of rollouts of version {VERSION}: {seen}",
            "continue with the version that wrote it, or move the file away; traffic is unchanged",
        )

    def _failed(self, error: sqlite3.Error) -> CanaryError:
        return CanaryError(
            f"the state of the rollouts cannot be read or written: {self._path}: {error}",
            "correct what is named and run the same command again; without a controller the stable pair gets "
            "all requests once the lease ends",
        )

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._write(f"BEGIN {kind}")
        try:
            yield
            self._write("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite has rolled back by itself after some errors
                self._write("ROLLBACK")
            raise

    def _insert(self, table: str, canary_id: str, document: Any) -> None:
        statement = f"INSERT INTO {table} (canary_id, document) VALUES (?, ?)"
        self._write(statement, canary_id, to_text(document))

    def _documents(self, table: str, rollout: Rollout) -> list[str]:
        statement = f"SELECT document FROM {table} WHERE canary_id = ? ORDER BY number"
        return [text for (text,) in self._read(statement, rollout.canary_id)]

    def _write(self, statement: str, *values: Any) -> None:
        self._read(statement, *values)

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from None


def _no_rollout(why: str) -> CanaryError:
    return CanaryError(
        f"there is no rollout: {why}",
        "start one with 'draftproof canary start --candidate <recipe>', or name its --recipe",
    )


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return whose file it is, and of which version."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return application, version
