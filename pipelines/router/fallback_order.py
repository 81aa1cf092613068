"""Orders the arms that are asked for a request and explains which ones were skipped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from pipelines.router.arms import Arm
from pipelines.router.breaker import Outcome
from pipelines.router.observation import FallbackReason

_REASONS: dict[Outcome, FallbackReason] = {
    "error": "error",
    "timeout": "timeout",
    "busy": "busy",
    "unreached": "busy",  # like a full queue, this is not the arm's fault
    "refused": "refused",
}


def fallback_order(arm: Arm, arms: Collection[Arm]) -> tuple[Arm, ...]:
    """Return the chosen arm, then its fallbacks: the stable pair, then the target alone.

    The candidate is never a fallback: it answers only requests that were routed to it.

    Args:
        arm: The chosen arm.
        arms: The arms that are served.
    """
    stand_ins: tuple[Arm, ...] = ("stable", "control")
    return (arm, *(each for each in stand_ins if each in arms and each != arm))


def healthy_first(order: Sequence[Arm], is_in: Callable[[Arm], bool]) -> tuple[Arm, ...]:
    """Move arms with an open breaker to the end, so that a request fails only if no arm answers.

    Args:
        order: From ``fallback_order``.
        is_in: Whether an arm's breaker lets the request through.
    """
    return tuple(sorted(order, key=lambda arm: not is_in(arm)))


def skipped_arms(
    order: Sequence[Arm], answered: Arm, outcomes: Mapping[Arm, Outcome]
) -> tuple[tuple[Arm, FallbackReason], ...]:
    """Return the arms before the one that answered, each with the reason why it did not answer.

    Args:
        order: From ``fallback_order``.
        answered: The arm that answered.
        outcomes: Outcomes of the arms that were asked.
    """
    before = order[: order.index(answered)]
    return tuple((arm, _REASONS.get(outcomes.get(arm, "cancelled"), "out")) for arm in before)
