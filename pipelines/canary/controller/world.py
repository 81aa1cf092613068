"""Interface for everything that a rollout does outside its state file.

``TritonWorld`` implements it for two pairs in one Triton server, ``pipelines.upstreams`` for servers that
others run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.canary.judge.resources import Sample
from pipelines.router.arms import ArmTable
from pipelines.router.observation import Observation


@dataclass(frozen=True)
class Outcome:
    """Result of the work of a phase.

    Attributes:
        is_good: Whether the next phase may begin.
        reason: Explanation in a sentence.
        evidence: Figures behind it, ready for JSON.
        needs_review: Whether a person has to decide, because the result neither passes nor fails.
    """

    is_good: bool
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)
    needs_review: bool = False


class World(Protocol):
    """The server, its router and the two pairs.

    Every method must be safe to repeat: after a controller was killed, the next one does not know how far it
    got. Every method may raise a ``DraftproofError``.
    """

    def preflight(self) -> Outcome:
        """Check the candidate before anything is loaded."""

    def load(self) -> Outcome:
        """Load the candidate beside the stable pair.

        The evidence contains its ``socket``, the socket of its target alone (``control_socket``), and whether
        both pairs have the same target (``same_target``).
        """

    def probe(self) -> Outcome:
        """Send probes to the candidate before any request of a client."""

    def unload(self) -> str:
        """Unload the candidate if it is there, and describe the result in a sentence."""

    def keep(self) -> Outcome:
        """Make servers load the candidate beside the stable pair at their start; ``unload`` reverts this."""

    def settle(self) -> Outcome:
        """Unload the former stable pair."""

    def write(self, table: ArmTable) -> None:
        """Write the table of arms, which the router follows immediately."""

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """Read the router's observations from an offset on; returns the next offset too."""

    def observations_end(self) -> int:
        """Return the offset at which the router's next observation begins."""

    def sample(self) -> Sample:
        """Measure memory and CPU time of both pairs' processes.

        Raises:
            CanaryError: The server does not publish them.
        """

    def listener(self, socket: str) -> int | None:
        """Identify the process that accepts connections at a socket; None if none does."""
