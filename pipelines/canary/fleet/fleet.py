"""The fleet of a rollout: the servers behind its agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipelines.canary.controller.rollout import Progress, Rollout
from pipelines.canary.fleet.call import Call, Description
from pipelines.canary.fleet.fleet_file import FleetFile, read_agent_key
from pipelines.canary.fleet.members import FoundByName, addresses_of, describe_all
from pipelines.canary.fleet.remote_world import RemoteWorld, describe
from pipelines.canary.fleet.servers import Servers
from pipelines.errors import CanaryError

Check = Callable[[], None]
"""Raises an error if this controller may not act any more."""


class Fleet:
    """The servers of a fleet.

    Args:
        agents: As ``FleetFile.agents``.
        key: Key of the agents.
        name: As ``FleetFile.agents_name``.
        check: Called before each call to an agent.
    """

    def __init__(self, agents: Sequence[str], key: str, name: str = "", check: Check = lambda: None) -> None:
        self._agents = agents
        self._key = key
        self._name = name
        self._check = check

    @classmethod
    def read(cls, path: Path, check: Check = lambda: None) -> Fleet:
        """Read the file of a fleet, and the key.

        Raises:
            CanaryError: One of them cannot be read.
        """
        found = FleetFile.read(path)
        key = read_agent_key(path.parent / found.key_file)
        return cls(found.agents, key, found.agents_name, check)

    def find_in_service(self) -> Description:
        """Return the pair in service on all servers.

        Raises:
            CanaryError: Servers have different pairs, fewer than a majority answer, or the name of the agents
                is not found.
        """
        agents = self._look_up()
        answers = describe_all(agents, self._describe)
        found = {agent: answer for agent, answer in answers.items() if isinstance(answer, Description)}
        if 2 * len(found) <= len(agents):
            raise CanaryError(
                "a majority of the servers is missing",
                values="; ".join(
                    f"{agent}: {answer}" for agent, answer in answers.items() if agent not in found
                ),
                limit=f"more than half of {len(agents)}",
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
        known = progress.servers if progress else {}
        candidate = progress.candidate_socket if progress else ""
        call = Call(rollout.stable_socket, candidate, rollout.recipe_candidate, rollout.limits)
        if not self._name:
            worlds = {agent: RemoteWorld(agent, self._key, call, self._check) for agent in self._agents}
            return Servers(worlds, known)

        def world(address: str, server: str, candidate: str) -> RemoteWorld:
            meant = replace(call, server=server, candidate=candidate)
            return RemoteWorld(address, self._key, meant, self._check)

        look_up = partial(addresses_of, self._name)
        gone_after_s = rollout.plan.lease_s
        find = FoundByName(look_up, self._describe, world, rollout.stable_socket, tuple(known), gone_after_s)
        return Servers({}, known, find)

    def _look_up(self) -> Sequence[str]:
        if not self._name:
            return self._agents
        try:
            return addresses_of(self._name)
        except OSError as error:
            raise CanaryError(
                "the name of the agents is not found",
                values=f"{self._name}: {error}",
                limit="a name that has the address of each server's agent in DNS",
                remedy="correct agents_name in the file of the fleet, or start the servers",
            ) from None

    def _describe(self, agent: str) -> Description:
        return describe(agent, self._key)
