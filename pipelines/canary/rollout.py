"""One rollout as it is kept: what it began with, and how far it is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.canary.analysis.limits import Limits, limits_from
from pipelines.canary.phases import Position
from pipelines.canary.plan import Plan
from pipelines.routing.strict_json import parse


@dataclass(frozen=True)
class Rollout:
    """What does not change while it lasts.

    Attributes:
        canary_id: Its name.
        recipe_stable: Of the pair in service.
        recipe_candidate: Of the new one.
        began_at_s: Unix time.
        plan: As it was read at the beginning.
        limits: As they were read then.
        stable_socket: Of the pair in service.
        control_socket: Of the target alone; "" if it is not served.
        generation: Of the table of arms that it found.
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

    def to_text(self) -> str:
        """JSON that ``from_text`` reads."""
        return json_text(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Rollout:
        """What ``to_text`` wrote."""
        raw = json.loads(text)
        raw["plan"] = parse(Plan, raw["plan"])
        raw["limits"] = limits_from(raw["limits"], Path("limits of the rollout"))
        return cls(**raw)


@dataclass(frozen=True)
class Progress:
    """What changes, as a whole.

    Attributes:
        position: Phase and what belongs to it.
        generation: Of the table of arms that is to hold.
        candidate_socket: "" until it is known.
        candidate_control_socket: Of the candidate's target alone; likewise.
        same_target: Whether both pairs have one target, so that they must say the same.
        offset: Bytes of the router's observations that were taken in.
        complete_until_s: Every request that arrived before this unix time has been taken in.
    """

    position: Position
    generation: int
    candidate_socket: str = ""
    candidate_control_socket: str = ""
    same_target: bool = True
    offset: int = 0
    complete_until_s: float = 0.0

    def to_text(self) -> str:
        """JSON that ``from_text`` reads."""
        return json_text(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Progress:
        """What ``to_text`` wrote."""
        raw = json.loads(text)
        return cls(**{**raw, "position": Position(**raw["position"])})


def json_text(value: Any) -> str:
    """JSON; what is not finite becomes null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
