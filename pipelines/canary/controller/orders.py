"""Orders of operators for a rollout, and the lock of the one controller that carries them out."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pipelines.canary.controller.phases import Order, Position
from pipelines.canary.controller.state import Store
from pipelines.errors import CanaryError

ORDERS: dict[Order, str] = {
    "pause": "keep the current weights",
    "resume": "resume a paused rollout",
    "promote": "promote the candidate without waiting for the verdict",
    "abort": "roll the candidate back",
}


@contextlib.contextmanager
def sole_controller(state: Path) -> Iterator[None]:
    """Hold the lock of a state file, so that no other controller can run; it ends with the process.

    Raises:
        CanaryError: Another controller holds the lock.
    """
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CanaryError(
                f"a rollout is already running: {state} has a controller",
                f"wait until it ends, or end it with 'draftproof canary abort --state {state}'",
            ) from None
        yield


def has_controller(state: Path) -> bool:
    """Return whether a controller is running."""
    try:
        with sole_controller(state):
            return False
    except CanaryError:
        return True


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
            stands = "has no rollout" if position is None else f"is in phase {position.phase}"
            raise CanaryError(
                f"the rollout cannot carry out the order {order}, for {_WHEN[order]}: {state} {stands}",
                f"see 'draftproof canary status --state {state}'",
            )
        store.give(rollout, order)
    finally:
        store.close()
    if has_controller(state):
        return f"{order}: the controller carries it out in its next cycle"
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
        return not (position.is_leaving or position.is_final)
    if order == "pause":
        return position.is_judged and not position.paused_in
    return bool(position.paused_in) or (order == "promote" and position.is_judged)
