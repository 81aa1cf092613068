"""Defines what a controller sends to the agent of a server, and how both name pairs.

Sockets differ from server to server, so a controller names a pair by its fingerprint and the target alone of
that pair by ``control_of``. The agent replaces these names by the sockets of its server.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines import configuration
from pipelines.canary.judge.limits import Limits
from pipelines.router.arms import ArmTable

PATH = "/rollout/"
"""Path of the methods of ``World``, by name."""

DESCRIBE = "/server"
"""Path of the description of the pair in service."""

_CONTROL = "/control"


def control_of(pair: str) -> str:
    """Return the name of the target alone of a pair."""
    return pair + _CONTROL


@configuration.strict
@dataclass(frozen=True)
class Call:
    """One call of a method of ``World``.

    Attributes:
        stable: Name of the pair in service when the rollout began.
        candidate: Name of the candidate; "" until it is known.
        recipe: Recipe of the candidate, or path of its package on the server.
        limits: Limits of the rollout.
        table: Table of arms with names in place of sockets, for ``write``.
        lease_s: Seconds for which the candidate may get requests from now on, so that the clocks of
            controller and server need not agree.
        offset: Offset, for ``observations``.
        server: Name of the server that is meant (``server_name``), because its address may have become that
            of another one; "" for whichever server is there.
    """

    stable: str
    candidate: str
    recipe: str
    limits: Limits
    table: ArmTable | None = None
    lease_s: float = 0.0
    offset: int = 0
    server: str = ""


@configuration.strict
@dataclass(frozen=True)
class Description:
    """The pair in service on a server.

    Attributes:
        server: Name of the server (``server_name``).
        name: Name of the recipe of the pair in service.
        fingerprint: Name of that pair for the fleet.
        own: Name of the pair of the server's own recipe or package; another one was promoted if it differs.
        draft_digest: Digest of the draft's engine.
        target_digest: Digest of the target's engine.
        generation: Generation of the table of arms.
    """

    server: str
    name: str
    fingerprint: str
    own: str
    draft_digest: str
    target_digest: str
    generation: int

    @property
    def pair(self) -> tuple[str, str, str, str]:
        """Return what all servers of a fleet must have in common."""
        return self.name, self.fingerprint, self.draft_digest, self.target_digest

    def __str__(self) -> str:
        """Describe the pair by its digests."""
        return f"{self.name} (draft {self.draft_digest[:16]}, target {self.target_digest[:16]})"
