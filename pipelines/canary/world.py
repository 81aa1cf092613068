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

        The evidence names its ``socket``, and says whether both have one target (``same_target``).
        """

    def probe(self) -> Outcome:
        """Ask the candidate before any client does."""

    def unload(self) -> None:
        """Take the candidate away; one that is not there is no error."""

    def settle(self) -> Outcome:
        """Make the promoted candidate the pair that is served without any rollout."""

    def write(self, table: ArmTable) -> None:
        """Tell the router, which follows at once."""

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """What the router has noted since, and the offset after it."""

    def is_answering(self, socket: str) -> bool:
        """Whether a process listens there."""
