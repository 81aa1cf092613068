"""Which arms are asked one after the other, and for which of them the answering one stood in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from pipelines.routing.arms import Arm
from pipelines.routing.breaker import Outcome
from pipelines.routing.observation import FallbackReason

_REASONS: dict[Outcome, FallbackReason] = {
    "error": "error",
    "timeout": "timeout",
    "busy": "busy",
    "refused": "refused",
}


def order_of_asking(arm: Arm, arms: Collection[Arm]) -> tuple[Arm, ...]:
    """The arm itself, then those that stand in for it: the stable pair, then the target alone.

    Never the candidate: it answers what it was chosen for and nothing else.

    Args:
        arm: Chosen.
        arms: Those that there are.
    """
    stand_ins: tuple[Arm, ...] = ("stable", "control")
    return (arm, *(each for each in stand_ins if each in arms and each != arm))


def healthy_first(order: Sequence[Arm], is_in: Callable[[Arm], bool]) -> tuple[Arm, ...]:
    """The same arms, those that are out at the end: a request is lost only if none of them answers.

    Args:
        order: Of asking.
        is_in: Whether an arm's breaker lets the request through.
    """
    return tuple(sorted(order, key=lambda arm: not is_in(arm)))


def passed_over(
    order: Sequence[Arm], answered: Arm, outcomes: Mapping[Arm, Outcome]
) -> tuple[tuple[Arm, FallbackReason], ...]:
    """The arms before the one that answered, each with the reason why it was not that one.

    Args:
        order: Of asking, as ``order_of_asking`` gave it.
        answered: One of these.
        outcomes: Of the arms that were asked.
    """
    before = order[: order.index(answered)]
    return tuple((arm, _REASONS.get(outcomes.get(arm, "cancelled"), "out")) for arm in before)
