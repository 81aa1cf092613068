"""A rollout as the state file stores it, and the table of arms that follows from it.

Its settings stay; its progress is written as a whole.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

from pipelines import configuration
from pipelines.canary.controller.phases import ENDED, PREPARING, Position, step_of
from pipelines.canary.controller.plan import Plan
from pipelines.canary.judge.limits import Limits
from pipelines.errors import CanaryError
from pipelines.router.arms import ArmTable, ShadowSetting

_Document = TypeVar("_Document")

_SETTLES_WITHIN_S = 3600.0
"""Lease while a promoted candidate becomes the stable one: it is proven, and large engines load slowly."""


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
        stable_socket: Socket of the pair in service.
        generation: Generation of the table of arms at the start.
    """

    canary_id: str
    recipe_stable: str
    recipe_candidate: str
    began_at_s: float
    plan: Plan
    limits: Limits
    stable_socket: str
    generation: int


@configuration.strict
@dataclass(frozen=True)
class Progress:
    """Progress of a rollout, which is written as a whole.

    Attributes:
        position: Phase and its details.
        generation: Generation of the table of arms that the router must follow.
        candidate_socket: Socket of the candidate; "" until it is known.
        same_target: Whether both pairs have the same target, so that their answers must be equal.
        listener: Process at the candidate's socket (``World.listener``); 0 until it is known.
        offset: Number of the latest observation that was read from the router's log.
        complete_until_s: Every request that arrived before this unix time has been read.
    """

    position: Position
    generation: int
    candidate_socket: str = ""
    same_target: bool = True
    listener: int = 0
    offset: int = 0
    complete_until_s: float = 0.0


def weights_at(position: Position, plan: Plan) -> dict[str, float]:
    """Return the share of the requests that each arm answers at a position."""
    step = step_of(position, plan)
    candidate = 0.0 if step is None else step.weight
    if position.phase in ("promoting", "settling"):
        candidate = 1.0
    return {"stable": 1.0 - candidate, "candidate": candidate}


def arm_table(rollout: Rollout, progress: Progress, now_s: float) -> ArmTable:
    """Build the table of arms for the router.

    Args:
        rollout: Rollout from the state file.
        progress: Its progress from the state file.
        now_s: Unix time at which the lease begins.
    """
    position, plan = progress.position, rollout.plan
    lease_s = _SETTLES_WITHIN_S if position.phase == "settling" else plan.lease_s
    weight = weights_at(position, plan)["candidate"]
    is_ready = bool(progress.candidate_socket) and position.serving not in PREPARING
    has_candidate = is_ready and not position.is_leaving and not position.is_stable
    return ArmTable(
        generation=progress.generation,
        canary_id="" if position.phase in ENDED else rollout.canary_id,
        salt=rollout.canary_id,
        stable=progress.candidate_socket if position.is_stable else rollout.stable_socket,
        candidate=progress.candidate_socket if has_candidate else "",
        candidate_weight=weight,
        shadow=_shadow(position, plan, weight),
        replays_match="stable" if progress.same_target else "own_target",
        bands=plan.bands,
        lease_until_s=now_s + lease_s,
        slow_after_s=plan.slow_after_s,
    )


def _shadow(position: Position, plan: Plan, weight: float) -> ShadowSetting | None:
    share = plan.replayed_share(weight) if position.is_judged else 0.0
    return replace(plan.shadow.setting, share=share) if share else None


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
