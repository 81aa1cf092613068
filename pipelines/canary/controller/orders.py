"""Orders of operators for a running rollout."""

from __future__ import annotations

from pathlib import Path

from pipelines.canary.controller.facts import Order
from pipelines.canary.controller.lock import has_controller
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.state import Store
from pipelines.errors import CanaryError

ORDERS: dict[Order, str] = {
    "pause": "keep the current weights",
    "resume": "resume a paused rollout",
    "promote": "promote the candidate without waiting for the verdict",
    "abort": "roll the candidate back",
}


def give_order(state: Path, order: Order) -> str:
    """Add an order for the controller to the state file.

    Args:
        state: State file.
        order: Order to add.

    Returns:
        Sentence that describes what will happen.

    Raises:
        CanaryError: There is no rollout, or its phase does not accept the order.
    """
    store = Store.existing(state)
    try:
        rollout = store.latest()
        position = None if rollout is None else store.progress(rollout).position
        if rollout is None or position is None or not _fits(order, position):
            raise CanaryError(
                f"the rollout cannot carry out the order {order}",
                values=f"{state}: {'no rollout' if position is None else f'phase {position.phase}'}",
                limit=_WHEN[order],
                remedy=f"see 'python -m pipelines.canary status --state {state}'",
            )
        store.give(rollout, order)
    finally:
        store.close()
    if has_controller(state):
        return f"{order}: the controller carries it out at its next look"
    return (
        f"{order}: stored. No controller runs, so the stable pair gets all requests once the lease ends; "
        f"the command that started {rollout.recipe_candidate}'s rollout resumes it and carries the order out"
    )


_WHEN: dict[Order, str] = {
    "pause": "the phases shadow and step",
    "resume": "a paused rollout",
    "promote": "the phases shadow and step, also while paused",
    "abort": "a rollout that is neither promoted nor rolled back",
}


def _fits(order: Order, position: Position) -> bool:
    if order == "abort":
        return not (position.is_leaving or position.is_stable)
    if order == "pause":
        return position.is_judged and not position.paused_in
    return bool(position.paused_in) or (order == "promote" and position.is_judged)
