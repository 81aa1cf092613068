"""Interface for everything that a rollout does outside its state file.

``OwnServers`` implements it for two servers on this machine, of which it starts the second,
``pipelines.upstreams`` for servers that others run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.canary.judge.resources import Sample
from pipelines.router.arms import ArmTable
from pipelines.router.observation import Observation


@dataclass(frozen=True)
class PhaseResult:
    """Result of the work of a phase.

    Attributes:
        is_good: Whether the next phase may begin.
        reason: Explanation in a sentence.
        evidence: Figures behind it, ready for JSON.
    """

    is_good: bool
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)


class World(Protocol):
    """The two servers, and the router in front of them.

    Every method must be safe to repeat: after a controller was killed, the next one does not know how far it
    got. Every method may raise a ``DraftproofError``.
    """

    def preflight(self) -> PhaseResult:
        """Check the candidate before it is started."""

    def load(self) -> PhaseResult:
        """Start the candidate's server if nobody else does.

        The evidence contains its ``socket``, and whether both pairs have the same target (``same_target``).
        """

    def settle(self) -> PhaseResult:
        """Make a promoted candidate the stable one, while it answers all requests where it was started.

        The evidence contains the ``socket`` at which it answers from then on.
        """

    def unload(self) -> str:
        """End the server that ``load`` started, and describe the result in a sentence."""

    def write(self, table: ArmTable) -> None:
        """Write the table of arms, which the router follows immediately."""

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """Read the router's observations from an offset on; returns the next offset too."""

    def observations_end(self) -> int:
        """Return the offset at which the router's next observation begins."""

    def sample(self) -> Sample:
        """Measure memory and CPU time of both servers' engines.

        Raises:
            CanaryError: The server does not publish them.
        """

    def listener(self, socket: str) -> int | None:
        """Identify the process that accepts connections at a socket; None if none does."""
