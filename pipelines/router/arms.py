"""Defines the table of arms: which arms answer, with which share of the requests, and until when.

The controller of a rollout writes the table to a JSON file, and the router follows the file, so shares change
without a restart and survive one. The candidate's share is valid for a lease only: if the controller dies,
all requests return to the stable pair.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from pipelines import configuration
from pipelines.atomic_file import version_of, write_whole
from pipelines.errors import CanaryError
from pipelines.socket_path import check_socket_path

_LOG = logging.getLogger(__name__)

FORMAT = 2

Arm = Literal["stable", "candidate", "control"]
"""The pair in service, the new pair, and the target of the pair in service without drafting."""

Band = Literal["low", "medium", "high"]

Expected = Literal["stable", "own_target"]
"""The answer that a replay on the candidate must equal: the stable pair's if both have the same target,
otherwise that of the candidate's own target without drafting."""

Share = Annotated[float, Field(ge=0, le=1)]

_REMEDY = "correct the table; the last valid one stays in use"
_SLOW_AFTER_S = 10.0


@dataclass(frozen=True)
class ShadowSetting:
    """Limits for replays on the candidate; one with a target of its own answers each replay twice.

    Attributes:
        share: Share of the requests that is replayed, 0 to 1.
        max_per_s: Replays started per second.
        max_in_flight: Concurrent replays.
        max_queue: Replays that may wait.
    """

    share: Share
    max_per_s: PositiveFloat
    max_in_flight: PositiveInt
    max_queue: PositiveInt


@dataclass(frozen=True)
class Bands:
    """Load bands of the server by the number of requests in flight.

    Attributes:
        medium_from: Requests in flight from which the load is medium.
        high_from: Requests in flight from which the load is high.
    """

    medium_from: PositiveInt
    high_from: PositiveInt

    def __post_init__(self) -> None:
        if self.high_from <= self.medium_from:
            band = f"high_from={self.high_from}, medium_from={self.medium_from}"
            raise CanaryError(f"the load would never be medium with bands.{band}", _REMEDY)

    def band(self, num_open: int) -> Band:
        """Return the load band of a request.

        Args:
            num_open: Requests in flight over all arms when it arrived, including itself.
        """
        if num_open < self.medium_from:
            return "low"
        return "medium" if num_open < self.high_from else "high"


@configuration.strict
@dataclass(frozen=True)
class ArmTable:
    """The table of arms.

    Attributes:
        generation: Grows with each change; the router publishes the one that it follows.
        canary_id: The rollout; "" for none.
        salt: Salt of the hash that routes requests (``choice``).
        stable: Path of the Unix socket of the pair in service, or name of a server of another engine.
        candidate: The same of the new one; "" outside a rollout.
        candidate_weight: Share of the requests that it answers.
        shadow: Limits for replays; None for no replays.
        replays_match: The answer that a replay must equal.
        bands: Load bands.
        lease_until_s: Unix time at which the candidate's share returns to the stable pair.
        slow_after_s: Time without a token after which the next arm is asked too.
        control: Socket of the stable pair's target without drafting, which the router knows; "" without one.

    Raises:
        CanaryError: The table is invalid.
    """

    generation: NonNegativeInt
    canary_id: str
    salt: str
    stable: str
    candidate: str
    candidate_weight: Share
    shadow: ShadowSetting | None
    replays_match: Expected
    bands: Bands
    lease_until_s: NonNegativeFloat
    slow_after_s: PositiveFloat
    control: Annotated[str, configuration.from_reader] = ""

    def __post_init__(self) -> None:
        for socket in self.sockets.values():
            check_socket_path(socket, CanaryError)
        if self.candidate == self.stable:
            raise CanaryError(f"two arms share a socket: {self.stable}", _REMEDY)
        if not self.candidate and (self.shadow is not None or self.candidate_weight):
            raise CanaryError("shadow and candidate_weight need a candidate", _REMEDY)

    @classmethod
    def without_rollout(
        cls, stable: str, bands: Bands, slow_after_s: float = _SLOW_AFTER_S, control: str = ""
    ) -> ArmTable:
        """Return a table in which one arm answers all requests."""
        return cls(0, "", "", stable, "", 0.0, None, "stable", bands, 0.0, slow_after_s, control)

    @property
    def sockets(self) -> dict[Arm, str]:
        """Sockets of the arms that exist, in the order stable, candidate, control."""
        named: dict[Arm, str] = {
            "stable": self.stable,
            "candidate": self.candidate,
            "control": self.control,
        }
        return {arm: socket for arm, socket in named.items() if socket or arm == "stable"}

    def weights(self, now_s: float) -> dict[Arm, float]:
        """Return the current share of each arm, with the lease applied.

        Args:
            now_s: Unix time.
        """
        weight = self.candidate_weight if now_s < self.lease_until_s else 0.0
        return {"stable": 1 - weight, "candidate": weight} if self.candidate else {"stable": 1.0}

    def shadow_at(self, now_s: float) -> ShadowSetting | None:
        """Return the limits for replays; None after the lease."""
        return self.shadow if now_s < self.lease_until_s else None


def read_table(path: Path) -> ArmTable:
    """Read a file that ``write_table`` wrote.

    Raises:
        CanaryError: The file cannot be read, has another version or is invalid.
    """
    remedy = (
        "resume the rollout with its own command, whose controller writes it again, or delete it: then the "
        "stable pair answers all requests"
    )
    return configuration.read_json(ArmTable, path, FORMAT, CanaryError, remedy)


def write_table(path: Path, table: ArmTable) -> None:
    """Replace the file atomically: readers see the old table or the new one."""
    document = {"format": FORMAT, **dataclasses.asdict(table)}
    del document["control"]
    write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


class LiveArms:
    """Follows the table in a file and keeps the last valid one.

    The router's loop and the thread that publishes gauges both read it.

    Args:
        path: The file; it need not exist. None for a router that takes no part in rollouts.
        default: The table to use while there is no file; its control is that of every table.
    """

    def __init__(self, path: Path | None, default: ArmTable) -> None:
        self._path = path
        self._default = default
        self._table = default
        self._seen: tuple[int, ...] | None = None
        self._lock = threading.Lock()  # else a slow reader could put back an older table than a fast one

    def read(self) -> ArmTable:
        """Return the current table; an invalid file is logged once and ignored."""
        with self._lock:
            seen = version_of(self._path) if self._path else None
            if self._path and seen != self._seen:
                self._seen = seen
                try:
                    self._follow(self._default if seen is None else self._read(self._path))
                except CanaryError as error:
                    _LOG.error("the table of arms is invalid, so the last valid one stays in use: %s", error)
            return self._table

    def _read(self, path: Path) -> ArmTable:
        return dataclasses.replace(read_table(path), control=self._default.control)

    def _follow(self, table: ArmTable) -> None:
        before, self._table = self._table, table
        if table.generation != before.generation:  # not just a new lease
            _LOG.warning("following table of arms, generation %d: %s", table.generation, table)
