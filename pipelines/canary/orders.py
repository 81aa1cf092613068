"""What people ask of a rollout that is under way."""

from __future__ import annotations

from pathlib import Path

from pipelines.canary.phases import Order, Position
from pipelines.canary.state import Store, has_controller
from pipelines.errors import CanaryError

ORDERS: dict[Order, str] = {
    "pause": "keep its weight as it is",
    "resume": "let a paused one go on",
    "promote": "promote it without waiting for the verdict",
    "abort": "take the candidate away",
}


def give_order(state: Path, order: Order) -> str:
    """Leave an order for the controller.

    Args:
        state: The state file.
        order: What is asked.

    Returns:
        What will happen, in a sentence.

    Raises:
        CanaryError: There is no rollout that could follow it.
    """
    store = Store.existing(state)
    try:
        rollout = store.latest()
        position = None if rollout is None else store.progress(rollout).position
        if rollout is None or position is None or not _fits(order, position):
            raise CanaryError(
                f"the rollout cannot follow the order to {order}",
                values=f"{state}: {'no rollout' if position is None else f'phase {position.phase}'}",
                limit=_WHEN[order],
                remedy="see 'python -m pipelines.canary status'",
            )
        store.give(rollout, order)
    finally:
        store.close()
    if has_controller(state):
        return f"{order}: at the next look"
    return (
        f"{order}: noted. No controller runs, so the stable pair gets all requests once the lease ends; "
        f"'make canary CANDIDATE={rollout.recipe_candidate}' goes on and follows the order"
    )


_WHEN: dict[Order, str] = {
    "pause": "in shadow and in the steps",
    "resume": "while it is paused",
    "promote": "in shadow and in the steps, and while it is paused",
    "abort": "until it is the stable pair, or leaves anyway",
}


def _fits(order: Order, position: Position) -> bool:
    if order == "abort":
        return not (position.is_leaving or position.is_stable)
    if order == "pause":
        return position.is_judged and not position.paused_in
    return bool(position.paused_in) or (order == "promote" and position.is_judged)
