"""Derive the table of arms, which the router follows, from the state of a rollout."""

from __future__ import annotations

from dataclasses import replace

from pipelines.canary.controller.phases import ENDED, PREPARING, Position, step_of
from pipelines.canary.controller.plan import Plan
from pipelines.canary.controller.rollout import Progress, Rollout
from pipelines.router.arms import ArmSetting, ArmTable, ShadowSetting


def weights_at(position: Position, plan: Plan) -> dict[str, float]:
    """Return the share of the requests that each arm answers at a position."""
    step = step_of(position, plan)
    candidate = 0.0 if step is None else step.weight
    if position.phase == "promoting":
        candidate = 1.0
    control = plan.control_weight if position.is_judged else 0.0
    return {"stable": 1.0 - candidate - control, "candidate": candidate, "control": control}


def arm_table(rollout: Rollout, progress: Progress, now_s: float) -> ArmTable:
    """Build the table of arms for the router.

    Args:
        rollout: Rollout from the state file.
        progress: Its progress from the state file.
        now_s: Unix time at which the lease begins.
    """
    position, plan = progress.position, rollout.plan
    weights = weights_at(position, plan)
    is_ready = bool(progress.candidate_socket) and position.serving not in PREPARING
    has_candidate = is_ready and not position.is_leaving and not position.is_stable
    stable, control = rollout.stable_socket, rollout.control_socket
    if position.is_stable:  # both change together, so that either can resume answers of the other
        stable, control = progress.candidate_socket, progress.candidate_control_socket
    return ArmTable(
        generation=progress.generation,
        canary_id="" if position.phase in ENDED else rollout.canary_id,
        salt=rollout.canary_id,
        stable=ArmSetting(stable, weights["stable"]),
        candidate=ArmSetting(progress.candidate_socket, weights["candidate"]) if has_candidate else None,
        control=ArmSetting(control, weights["control"]) if control else None,
        shadow=_shadow(position, plan, weights["candidate"]),
        replays_match="stable" if progress.same_target else "own_target",
        bands=plan.bands,
        lease_until_s=now_s + plan.lease_s,
        slow_after_s=plan.slow_after_s,
    )


def without_candidate(table: ArmTable, rollout: Rollout) -> ArmTable:
    """Return a table for a server of a fleet that does not have the candidate: not yet, or not again."""
    control = rollout.control_socket
    return replace(
        table,
        stable=ArmSetting(rollout.stable_socket, 1.0),
        candidate=None,
        control=ArmSetting(control, 0.0) if control else None,
        shadow=None,
    )


def _shadow(position: Position, plan: Plan, weight: float) -> ShadowSetting | None:
    share = plan.replayed_share(weight) if position.is_judged else 0.0
    return replace(plan.shadow.setting, share=share) if share else None
