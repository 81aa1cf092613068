"""The fleet of a rollout: the file that names its agents, and the servers behind them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pipelines import configuration
from pipelines.canary.controller.rollout import Progress, Rollout
from pipelines.canary.fleet.call import Call, Description
from pipelines.canary.fleet.remote_world import RemoteWorld, describe
from pipelines.canary.fleet.servers import Servers
from pipelines.errors import CanaryError, DraftproofError

_REMEDY = "correct the file of the fleet; nothing was changed"


@configuration.strict
@dataclass(frozen=True)
class FleetFile:
    """The file of a fleet.

    Attributes:
        agents: ``http://host:port`` of the agents, in the order in which their servers get a candidate.
        key_file: Path of the file with the agents' key, relative to the folder of this file.
    """

    agents: Annotated[tuple[str, ...], Field(min_length=1)]
    key_file: str

    def __post_init__(self) -> None:
        wrong = [each for each in self.agents if not each.startswith(("http://", "https://"))]
        if wrong or len(set(self.agents)) < len(self.agents):
            raise CanaryError(
                "agents must be different addresses",
                values=f"agents={', '.join(self.agents)}",
                limit="http://host:port, each once",
                remedy=_REMEDY,
            )


class Fleet:
    """The servers of a fleet, by the addresses of their agents.

    Args:
        agents: As ``FleetFile.agents``.
        key: Key of the agents.
    """

    def __init__(self, agents: tuple[str, ...], key: str) -> None:
        self._agents = agents
        self._key = key

    @classmethod
    def read(cls, path: Path) -> Fleet:
        """Read the file of a fleet, and the key.

        Raises:
            CanaryError: One of them cannot be read.
        """
        found = configuration.read_yaml(FleetFile, path, CanaryError, _REMEDY)
        return cls(found.agents, read_agent_key(path.parent / found.key_file))

    def find_in_service(self) -> Description:
        """Return the pair in service on all servers.

        Raises:
            CanaryError: Servers have different pairs, or fewer than a majority answer.
        """
        with ThreadPoolExecutor(len(self._agents)) as pool:
            answers = list(pool.map(self._describe, self._agents))
        found = {
            agent: answer
            for agent, answer in zip(self._agents, answers, strict=True)
            if isinstance(answer, Description)
        }
        if 2 * len(found) <= len(self._agents):
            raise CanaryError(
                "a majority of the servers is missing",
                values="; ".join(
                    f"{agent}: {answer}"
                    for agent, answer in zip(self._agents, answers, strict=True)
                    if agent not in found
                ),
                limit=f"more than half of {len(self._agents)}",
                remedy="start their agents; no rollout was started",
            )
        if len({each.pair for each in found.values()}) > 1:
            raise CanaryError(
                "the servers of the fleet have different pairs",
                values="; ".join(f"{agent}: {each}" for agent, each in found.items()),
                limit="one pair, with the same engines and settings everywhere",
                remedy="serve the same package on all servers, or take a server out of the fleet",
            )
        return max(found.values(), key=lambda each: each.generation)

    def servers(self, rollout: Rollout, progress: Progress | None) -> Servers:
        """Return the servers of a rollout; the progress is None if it has not begun."""
        candidate = progress.candidate_socket if progress else ""
        call = Call(rollout.stable_socket, candidate, rollout.recipe_candidate, rollout.limits)
        worlds = {agent: RemoteWorld(agent, self._key, call) for agent in self._agents}
        return Servers(worlds, progress.servers if progress else {})

    def _describe(self, agent: str) -> Description | DraftproofError:
        try:
            return describe(agent, self._key)
        except DraftproofError as error:
            return error


def read_agent_key(path: Path) -> str:
    """Read the key that agents and controllers share.

    Raises:
        CanaryError: The file cannot be read, or is readable by other users, or its key is too short.
    """
    try:
        key = path.read_text(encoding="ascii").strip()
        is_open = path.stat().st_mode & 0o077
    except (OSError, ValueError) as error:
        raise _no_key(path, repr(error)) from None
    if is_open or len(key) < _LEAST_KEY:
        raise _no_key(path, "readable by others" if is_open else f"{len(key)} characters")
    return key


_LEAST_KEY = 32


def _no_key(path: Path, seen: str) -> CanaryError:
    return CanaryError(
        "the agents' key cannot be used",
        values=f"{path}: {seen}",
        limit=f"a file of {_LEAST_KEY} ASCII characters or more that only its owner can read",
        remedy="make one with 'umask 077; openssl rand -hex 32 > FILE' and copy it to all machines",
    )
