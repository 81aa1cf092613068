"""What a rollout knows, in one SQLite file: whoever is killed while writing it leaves the last whole state.

The controller alone changes a rollout (``sole_controller``); the command line adds orders for it, and
everybody may read. Rollouts that ended stay, for their reports.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.phases import Order, Position
from pipelines.canary.record import RolloutRecord, Transition
from pipelines.canary.rollout import Progress, Rollout, json_text
from pipelines.canary.wanted_arms import weights_at
from pipelines.errors import CanaryError

VERSION = 3
_APPLICATION = 0x64726166  # "draf"; says in the file whose it is
_BUSY_S = 10.0

_SCHEMA = """
CREATE TABLE rollout (number INTEGER PRIMARY KEY, canary_id TEXT UNIQUE, document TEXT, progress TEXT);
CREATE TABLE transition (number INTEGER PRIMARY KEY, canary_id TEXT, document TEXT);
CREATE TABLE request (number INTEGER PRIMARY KEY, canary_id TEXT, arrived_at_s REAL, document TEXT);
CREATE TABLE divergence (number INTEGER PRIMARY KEY, canary_id TEXT, document TEXT);
CREATE TABLE orders (number INTEGER PRIMARY KEY, canary_id TEXT, word TEXT, is_taken INTEGER);
CREATE INDEX request_of ON request (canary_id, arrived_at_s);
"""


class Store:
    """The file.

    Args:
        path: It is made if it is missing.

    Raises:
        CanaryError: It is another program's, of another version, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            with self._transaction():
                self._claim()
        except sqlite3.Error as error:
            raise self._unreadable(str(error)) from None

    @classmethod
    def existing(cls, path: Path) -> Store:
        """The file, if there is one.

        Raises:
            CanaryError: There is none, or as for the class.
        """
        if not path.is_file():
            raise CanaryError(
                "there is no rollout",
                values=f"{path} is not there",
                limit="a rollout that was begun",
                remedy="begin one with 'make canary CANDIDATE=<recipe>', or name its recipe with --recipe",
            )
        return cls(path)

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def begin(self, rollout: Rollout, offset: int = 0) -> None:
        """Add a rollout, in preflight.

        Args:
            rollout: Of a name of its own.
            offset: Bytes of the router's observations at its beginning; none of them is about it.
        """
        position = Position("preflight", rollout.began_at_s)
        begun = Transition(
            rollout.began_at_s, "", "preflight", "it begins", {}, weights_at(position, rollout.plan)
        )
        with self._transaction():
            progress = Progress(position, rollout.generation + 1, offset=offset).to_text()
            self._write("INSERT INTO rollout (canary_id, document, progress) VALUES (?, ?, ?)",
                        rollout.canary_id, rollout.to_text(), progress)  # fmt: skip
            self._write("INSERT INTO transition (canary_id, document) VALUES (?, ?)",
                        rollout.canary_id, json_text(asdict(begun)))  # fmt: skip

    def latest(self) -> Rollout | None:
        """The rollout that was begun last."""
        row = self._read("SELECT document FROM rollout ORDER BY number DESC LIMIT 1")
        return Rollout.from_text(row[0][0]) if row else None

    def progress(self, rollout: Rollout) -> Progress:
        """How far it is."""
        row = self._read("SELECT progress FROM rollout WHERE canary_id = ?", rollout.canary_id)
        return Progress.from_text(row[0][0])

    def advance(
        self,
        rollout: Rollout,
        progress: Progress,
        requests: Sequence[ObservedRequest] = (),
        divergences: Sequence[dict[str, Any]] = (),
        transition: Transition | None = None,
        order: int | None = None,
    ) -> None:
        """Write all that one look brought, or nothing of it.

        Args:
            rollout: Whose.
            progress: From now on.
            requests: New ones.
            divergences: New ones.
            transition: If the phase changed.
            order: Number of the one that was taken.
        """
        canary_id = rollout.canary_id
        with self._transaction():
            for request in requests:
                self._write("INSERT INTO request (canary_id, arrived_at_s, document) VALUES (?, ?, ?)",
                            canary_id, request.arrived_at_s, json_text(asdict(request)))  # fmt: skip
            for divergence in divergences:
                self._write("INSERT INTO divergence (canary_id, document) VALUES (?, ?)",
                            canary_id, json_text(divergence))  # fmt: skip
            if transition is not None:
                self._write("INSERT INTO transition (canary_id, document) VALUES (?, ?)",
                            canary_id, json_text(asdict(transition)))  # fmt: skip
            if order is not None:
                self._write("UPDATE orders SET is_taken = 1 WHERE number = ?", order)
            self._write("UPDATE rollout SET progress = ? WHERE canary_id = ?", progress.to_text(), canary_id)

    def give(self, rollout: Rollout, order: Order) -> None:
        """Leave an order for the controller."""
        with self._transaction():
            self._write("INSERT INTO orders (canary_id, word, is_taken) VALUES (?, ?, 0)",
                        rollout.canary_id, order)  # fmt: skip

    def next_order(self, rollout: Rollout) -> tuple[int, Order] | None:
        """Number and word of the oldest order that was not taken."""
        rows = self._read(
            "SELECT number, word FROM orders WHERE canary_id = ? AND NOT is_taken ORDER BY number LIMIT 1",
            rollout.canary_id,
        )
        return (rows[0][0], cast(Order, rows[0][1])) if rows else None

    def requests(self, rollout: Rollout) -> list[ObservedRequest]:
        """All that were taken in, also those after which one may be missing still."""
        rows = self._read(
            "SELECT document FROM request WHERE canary_id = ? ORDER BY number", rollout.canary_id
        )
        return [ObservedRequest.from_document(json.loads(text)) for (text,) in rows]

    def record(self) -> RolloutRecord:
        """All that is known of the latest rollout.

        Raises:
            CanaryError: There is none.
        """
        rollout = self.latest()
        if rollout is None:
            raise CanaryError(
                "there is no rollout",
                values=f"{self._path} has none",
                limit="a rollout that was begun",
                remedy="begin one with 'make canary CANDIDATE=<recipe>'",
            )
        with self._transaction("DEFERRED"):  # all of one moment
            progress = self.progress(rollout)
            requests = self.requests(rollout)
            transitions = self._read(
                "SELECT document FROM transition WHERE canary_id = ? ORDER BY number", rollout.canary_id
            )
            divergences = self._read(
                "SELECT document FROM divergence WHERE canary_id = ? ORDER BY number", rollout.canary_id
            )
        return RolloutRecord(
            rollout.canary_id,
            rollout.recipe_stable,
            rollout.recipe_candidate,
            rollout.began_at_s,
            progress.position.phase,
            tuple(Transition(**json.loads(text)) for (text,) in transitions),
            tuple(each for each in requests if each.arrived_at_s < progress.complete_until_s),
            tuple(json.loads(text) for (text,) in divergences),
            rollout.limits,
            rollout.plan.slo,
        )

    def _claim(self) -> None:
        application, version = (
            self._read(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version")
        )
        if (application, version) == (_APPLICATION, VERSION):
            return
        if application or version or self._read("SELECT name FROM sqlite_master"):
            seen = f"version {version}" if application == _APPLICATION else "not written by Draftproof"
            raise self._unreadable(seen)
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._write(statement)
        self._write(f"PRAGMA application_id = {_APPLICATION}")
        self._write(f"PRAGMA user_version = {VERSION}")

    def _unreadable(self, seen: str) -> CanaryError:
        return CanaryError(
            "the state of the rollouts cannot be read",
            values=f"{self._path}: {seen}",
            limit=f"a file of version {VERSION}, written by this program",
            remedy="go on with the version that wrote it, or move the file away; traffic is as it was",
        )

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _write(self, statement: str, *values: Any) -> None:
        self._connection.execute(statement, values)

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()


@contextlib.contextmanager
def sole_controller(state: Path) -> Iterator[None]:
    """Be the only controller of a state file; the lock goes with the process, however it ends.

    Raises:
        CanaryError: There is another one.
    """
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CanaryError(
                "a rollout is under way",
                values=f"{state} has a controller",
                limit="one rollout at a time",
                remedy="wait for it, or end it with 'python -m pipelines.canary abort'",
            ) from None
        yield


def has_controller(state: Path) -> bool:
    """Whether a controller runs."""
    try:
        with sole_controller(state):
            return False
    except CanaryError:
        return True
