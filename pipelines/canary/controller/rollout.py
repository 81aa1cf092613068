"""A rollout as the state file stores it: its settings, which stay, and its progress."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar

from pipelines import configuration
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.plan import Plan
from pipelines.canary.judge.limits import Limits
from pipelines.errors import CanaryError

_Document = TypeVar("_Document")


@configuration.strict
@dataclass(frozen=True)
class Rollout:
    """Settings of a rollout, which stay the same from start to end.

    Attributes:
        canary_id: Name of the rollout.
        recipe_stable: Recipe of the pair in service.
        recipe_candidate: Recipe of the new pair.
        began_at_s: Start, as unix time.
        plan: Plan as it was read at the start.
        limits: Limits as they were read at the start.
        stable_socket: Socket of the pair in service; in a fleet, its name (``fleet.call.Names``).
        control_socket: Likewise of the target alone; "" if it is not served.
        generation: Generation of the table of arms at the start, in a fleet the largest one.
    """

    canary_id: str
    recipe_stable: str
    recipe_candidate: str
    began_at_s: float
    plan: Plan
    limits: Limits
    stable_socket: str
    control_socket: str
    generation: int


@dataclass(frozen=True)
class ServerState:
    """Everything that a controller has to remember of a server.

    Attributes:
        run: Run of the server in which the candidate was loaded and probed (``World.run``); None if none.
        is_kept: Whether the server loads the candidate at its start.
        listener: Process at the candidate's socket (``World.listener``); 0 until it is known.
        offset: Bytes of the router's observation log that were read.
        complete_until_s: Every request that arrived before this unix time has been read.
        says: What it last said of itself, for people; "" if nothing is unusual.
    """

    run: str | None = None
    is_kept: bool = False
    listener: int = 0
    offset: int = 0
    complete_until_s: float = 0.0
    says: str = ""

    def is_complete_at(self, arrived_at_s: float) -> bool:
        """Return whether all requests have been read that the server received until then."""
        return arrived_at_s < self.complete_until_s


ServerStates = dict[str, ServerState]
"""State by server; a rollout of one server has the server "" alone."""


@configuration.strict
@dataclass(frozen=True)
class Progress:
    """Progress of a rollout, which is written as a whole.

    Attributes:
        position: Phase and its details.
        generation: Generation of the table of arms that the router must follow.
        candidate_socket: Socket of the candidate; "" until it is known.
        candidate_control_socket: Socket of the candidate's target alone; "" until it is known.
        same_target: Whether both pairs have the same target, so that their answers must be equal.
        servers: What is known of each server.
    """

    position: Position
    generation: int
    candidate_socket: str = ""
    candidate_control_socket: str = ""
    same_target: bool = True
    servers: ServerStates = field(default_factory=dict)


def to_text(document: Any) -> str:
    """Return a dataclass or a mapping as JSON, with null for numbers that are not finite."""
    return json.dumps(_finite(document), allow_nan=False)


def from_text(kind: type[_Document], text: str) -> _Document:
    """Return the dataclass that ``to_text`` wrote.

    Raises:
        CanaryError: Another version or another program wrote it.
    """
    remedy = "continue with the version that wrote it, or move the state file away; traffic is unchanged"
    return configuration.parse_json(kind, text, CanaryError, remedy)


def _finite(value: Any) -> Any:
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
