"""All that a rollout does outside its state file; tests have a world of their own."""

from __future__ import annotations

from typing import Protocol

from pipelines.canary.phases import Outcome
from pipelines.routing.arms import ArmTable
from pipelines.routing.observation import Observation


class World(Protocol):
    """The server, its router and the two pairs.

    Everything may be done again: a controller that was killed does not know whether it had done it. Any of it
    may raise a ``DraftproofError``.
    """

    def preflight(self) -> Outcome:
        """Check the candidate before anything is loaded."""

    def load(self) -> Outcome:
        """Load the candidate beside the stable pair.

        The evidence names its ``socket`` and that of its target alone (``control_socket``), and says whether
        both pairs have one target (``same_target``).
        """

    def probe(self) -> Outcome:
        """Ask the candidate before any client does."""

    def unload(self) -> str:
        """Take the candidate away; one that is not there is no error. Says what became of it."""

    def keep(self) -> Outcome:
        """Let every later server have the candidate, beside the stable pair; ``unload`` takes it back."""

    def settle(self) -> Outcome:
        """Take away the pair that was the stable one before the candidate."""

    def write(self, table: ArmTable) -> None:
        """Tell the router, which follows at once."""

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """What the router has noted since, and the offset after it."""

    def observations_end(self) -> int:
        """The offset of what the router will note from now on."""

    def is_answering(self, socket: str) -> bool:
        """Whether a process listens there."""
