"""The table of arms: who may answer, with which share of the requests, and how long that holds.

The controller of a rollout writes it as one JSON file, the router follows the file. So shares change
without a restart and survive one. What depends on the controller holds for a lease only: a controller that
died and never came back leaves no request on a candidate.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines.errors import CanaryError
from pipelines.routing.strict_json import located, parse
from pipelines.whole_file import write_whole

_LOG = logging.getLogger(__name__)

FORMAT = 1

Arm = Literal["stable", "candidate", "control"]
"""The pair in service, the new one, and the target alone of the pair in service."""

Band = Literal["low", "medium", "high"]

Expected = Literal["stable", "own_target"]
"""Whose answer a replay of the candidate must equal: the stable pair's, if both have one target; else that of
the candidate's own target without drafting."""

Weights = dict[Arm, float]
"""Share of the requests that each arm is to answer; they sum up to 1."""

_MAX_SOCKET_BYTES = 107  # sockaddr_un.sun_path of Linux has 108, the last one a zero
_ROUNDING = 1e-9  # of a sum of three weights


@dataclass(frozen=True)
class ArmSetting:
    """One arm.

    Attributes:
        socket: Path of the Unix socket on which its model answers.
        weight: Its share of the requests, 0 to 1.
    """

    socket: str
    weight: float

    def __post_init__(self) -> None:
        num_bytes = len(self.socket.encode("utf-8", "surrogatepass"))
        if not 0 < num_bytes <= _MAX_SOCKET_BYTES:
            seen = f"socket={self.socket!r:.200}, {num_bytes} bytes"
            raise _refuse("a socket has no usable path", seen, f"1 to {_MAX_SOCKET_BYTES} bytes")
        _check("weight", self.weight, 0, 1)


@dataclass(frozen=True)
class ShadowSetting:
    """Which answers of the stable pair the candidate repeats; one with a target of its own says each twice.

    Attributes:
        share: Of the requests, 0 to 1.
        max_per_s: Replays begun per second.
        max_in_flight: Replays at a time.
        max_queue: Replays that wait.
    """

    share: float
    max_per_s: float
    max_in_flight: int
    max_queue: int

    def __post_init__(self) -> None:
        _check("shadow.share", self.share, 0, 1)
        _check_above_0("shadow.max_per_s", self.max_per_s)
        _check("shadow.max_in_flight", self.max_in_flight, 1)
        _check("shadow.max_queue", self.max_queue, 1)


@dataclass(frozen=True)
class Bands:
    """Load of the whole server, told by the number of open requests.

    Attributes:
        medium_from: Open requests at which the load is no longer low.
        high_from: Open requests at which it is high.
    """

    medium_from: int
    high_from: int

    def __post_init__(self) -> None:
        _check("bands.medium_from", self.medium_from, 1)
        _check("bands.high_from", self.high_from, self.medium_from + 1)

    def band(self, num_open: int) -> Band:
        """The band of a request.

        Args:
            num_open: Requests open when it arrived, itself included, over all arms.
        """
        if num_open < self.medium_from:
            return "low"
        return "medium" if num_open < self.high_from else "high"


@dataclass(frozen=True)
class ArmTable:
    """All arms.

    Attributes:
        generation: Grows with each change; the router says which one it follows.
        canary_id: The rollout that this belongs to; "" for none.
        salt: Decides, with a request's key, where the request goes (``choice``).
        stable: The pair in service.
        candidate: The new pair; None outside a rollout.
        control: The stable pair's target alone; None if it is not served.
        shadow: What the candidate repeats; None for nothing.
        replays_match: What the candidate's tokens are compared with then.
        bands: Of the load.
        lease_until_s: Unix time at which the candidate's share falls back to the stable pair.
        slow_after_s: Wait for an arm's first token after which the next arm is asked too.

    Raises:
        CanaryError: No router could follow it.
    """

    generation: int
    canary_id: str
    salt: str
    stable: ArmSetting
    candidate: ArmSetting | None
    control: ArmSetting | None
    shadow: ShadowSetting | None
    replays_match: Expected
    bands: Bands
    lease_until_s: float
    slow_after_s: float

    def __post_init__(self) -> None:
        _check("generation", self.generation, 0)
        _check("lease_until_s", self.lease_until_s, 0)
        _check_above_0("slow_after_s", self.slow_after_s)
        weights = {arm: setting.weight for arm, setting in self.settings.items()}
        if abs(sum(weights.values()) - 1) > _ROUNDING:
            seen = ", ".join(f"{arm}={weight!r}" for arm, weight in weights.items())
            raise _refuse("the weights do not sum up", f"{seen}: {sum(weights.values())!r}", "a sum of 1")
        sockets = [setting.socket for setting in self.settings.values()]
        if len(set(sockets)) < len(sockets):
            raise _refuse("two arms are the same", f"sockets {', '.join(sockets)}", "a socket for each arm")
        if self.shadow is not None and self.candidate is None:
            raise _refuse("nobody is there to repeat answers", "shadow without candidate", "both or none")

    @property
    def settings(self) -> dict[Arm, ArmSetting]:
        """Of the arms that there are, in the order stable, candidate, control."""
        named: dict[Arm, ArmSetting | None] = {
            "stable": self.stable,
            "candidate": self.candidate,
            "control": self.control,
        }
        return {arm: setting for arm, setting in named.items() if setting is not None}

    def weights(self, now_s: float) -> Weights:
        """The shares that hold now, of the arms that there are.

        Args:
            now_s: Unix time.
        """
        weights = {arm: setting.weight for arm, setting in self.settings.items()}
        if "candidate" in weights and now_s >= self.lease_until_s:
            weights["stable"] += weights["candidate"]
            weights["candidate"] = 0.0
        return weights

    def shadow_at(self, now_s: float) -> ShadowSetting | None:
        """What the candidate repeats now; nothing after the lease."""
        return self.shadow if now_s < self.lease_until_s else None


def read_table(path: Path) -> ArmTable:
    """Read a file that ``write_table`` wrote.

    Raises:
        CanaryError: It cannot be read, is of another version, or makes no sense.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CanaryError(
            f"{path}: the table of arms cannot be read",
            values=" ".join(str(error).split()),
            limit="a JSON file",
            remedy="let the controller write it again ('python -m pipelines.canary resume'), or remove it: "
            "then the stable pair answers everything",
        ) from None
    try:
        return _parse(raw)
    except CanaryError as error:
        raise located(str(path), error) from None


def _parse(raw: Any) -> ArmTable:
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        seen = f"format={raw.get('format')!r:.200}" if isinstance(raw, dict) else f"{raw!r:.200}"
        raise _refuse("the table of arms is of another version", seen, f"format={FORMAT}")
    return parse(ArmTable, {key: value for key, value in raw.items() if key != "format"})


def write_table(path: Path, table: ArmTable) -> None:
    """Replace the file as a whole; whoever reads it sees the old table or the new one."""
    document = {"format": FORMAT, **dataclasses.asdict(table)}
    write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


class LiveArms:
    """Follows a table that may change, and keeps the last one that made sense.

    Args:
        path: The file; it need not be there.
        default: Holds without a file.
    """

    def __init__(self, path: Path, default: ArmTable) -> None:
        self._path = path
        self._default = default
        self._table = default
        self._seen: tuple[int, ...] | None = None

    def read(self) -> ArmTable:
        """What holds now. A file that makes no sense is named in the log once, and not followed."""
        seen = self._stamp()
        if seen != self._seen:
            self._seen = seen
            try:
                self._follow(self._default if seen is None else read_table(self._path))
            except CanaryError as error:
                _LOG.error("the arms stay as they were: %s", error)
        return self._table

    def _follow(self, table: ArmTable) -> None:
        before, self._table = self._table, table
        if (before.settings, before.shadow) != (table.settings, table.shadow):  # else a lease was renewed
            _LOG.warning(
                "arms follow generation %d: %s, shadow %s", table.generation, table.settings, table.shadow
            )

    def _stamp(self) -> tuple[int, ...] | None:
        """What changes with each replacement of the file, also within one tick of its clock."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _check(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Refuse a number out of range, and one that is none."""
    if not (least <= value <= most and value < math.inf):
        limit = f"{least} to {most}" if most < math.inf else f"{least} at least"
        raise _refuse("a value is out of range", f"{name}={value!r}", limit)


def _check_above_0(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise _refuse("a value is out of range", f"{name}={value!r}", "above 0")


def _refuse(what: str, values: str, limit: str) -> CanaryError:
    return CanaryError(what, values=values, limit=limit, remedy="correct the table; arms stay as they were")
