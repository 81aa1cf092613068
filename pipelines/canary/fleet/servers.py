"""Takes the candidate through the servers of a rollout: one, or those of a fleet.

Every method does a step of a rollout on all servers that are there (``Presence``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelines.canary.checks.observed_requests import observed_requests
from pipelines.canary.controller.facts import Outcome
from pipelines.canary.controller.rollout import ServerState, ServerStates
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.arrivals import Arrivals
from pipelines.canary.fleet.members import WAITS_TO_ADOPT, Membership
from pipelines.canary.fleet.presence import ALONE, Presence
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.resources import Sample
from pipelines.router.arms import ArmTable
from pipelines.router.observation import Observation


@dataclass(frozen=True)
class Watched:
    """State of the candidate's processes.

    Attributes:
        down_s: For how long one of them has refused connections; 0 if all accept them.
        has_restarted: Whether one has ended and another process has taken its place.
        server: Where.
    """

    down_s: float = 0.0
    has_restarted: bool = False
    server: str = ALONE


class Servers:
    """The servers, in the order in which they get the candidate.

    Args:
        worlds: World by server: that of ``ALONE``, or those of a fleet whose servers stay.
        states: What a controller stored before.
        find: Finds the servers of a fleet at each look; None if they stay.
    """

    def __init__(
        self, worlds: Mapping[str, World], states: ServerStates, find: Membership | None = None
    ) -> None:
        self._there = Presence(worlds, states, find)
        self._arrivals = Arrivals()
        self._loaded_on = ""  # the server on which the candidate was loaded first
        self._generation = -1
        self._told: set[str] = set()  # servers that have the table of arms of this generation
        self._done: set[str] = set()  # servers that are settled, or without the candidate
        self._answered_at_s: dict[str, float] = {}

    @classmethod
    def alone(cls, world: World, states: ServerStates) -> Servers:
        """Return the server of a rollout of one server."""
        return cls({ALONE: world}, {ALONE: ServerState(run=world.run()), **states})

    def look_around(self, candidate: str = "", *, is_stable: bool = False) -> None:
        """Find out which servers are there.

        Args:
            candidate: Name of the candidate; "" until it is known.
            is_stable: Whether the candidate has been promoted.
        """
        self._there.look_around(candidate, is_stable=is_stable)

    @property
    def states(self) -> ServerStates:
        """State of each server; the controller stores it with each look."""
        return self._there.states

    @property
    def waits_for(self) -> str:
        """Why the rollout must wait; "" if a majority of the servers is there."""
        return self._there.waits_for

    def preflight(self) -> Outcome | None:
        """Check the candidate on all servers that are there; None while the first one is away."""
        found = self._there.ask(self._there.runs, lambda name, world: world.preflight())
        first = self._there.first
        if not self._there.is_fleet or first not in found:
            return found.get(first)
        for name, outcome in found.items():
            if not outcome.is_good:
                return replace(outcome, reason=f"{name}: {outcome.reason}")
        if len({outcome.evidence["socket"] for outcome in found.values()}) > 1:
            seen = {name: outcome.evidence["engines"] for name, outcome in found.items()}
            listed = "; ".join(f"{name}: {engines}" for name, engines in seen.items())
            return Outcome(False, f"servers have different candidates under one name: {listed}", seen)
        return found[first]

    def load(self) -> Outcome | None:
        """Load the candidate on the first server; None while that is away."""
        first = self._loaded_on = self._there.first
        return self._there.ask(self._there.here([first]), lambda name, world: world.load()).get(first)

    def probe(self) -> Outcome | None:
        """Probe the candidate on the first server; None while that is away."""

        def ask(name: str, world: World) -> tuple[Outcome, int]:
            for step in (world.preflight, world.load) if is_another else ():
                outcome = step()
                if not outcome.is_good:
                    return outcome, 0
            return world.probe(), world.observations_end()

        # The one on which it was loaded is gone, or an earlier controller has loaded it.
        first = self._there.first
        is_another = self._there.is_fleet and self._loaded_on != first

        found = self._there.ask(self._there.here([first]), ask).get(first)
        if found is None:
            return None
        outcome, offset = found
        if self._there.is_fleet and (outcome.is_good or outcome.needs_review):
            self._there.change(first, run=self._there.runs[first], listener=0, offset=offset)
        return outcome

    def bring_up(self, share: float, candidate: str) -> Outcome | None:
        """Begin to bring the candidate up where it is missing.

        Args:
            share: Share of the servers that should have the candidate; at least the first one.
            candidate: Name of the candidate.

        Returns:
            Why the candidate cannot be brought up on a server; None if nothing failed.
        """
        failed: Outcome | None = None
        for name, arrival in self._arrivals.finished().items():
            if arrival.outcome.is_good:
                self._there.change(name, run=arrival.run, listener=0, offset=arrival.offset, says="")
            elif self._there.is_still_in(name, arrival.run):
                self._there.failed[name] = arrival.run
                self._there.change(name, says=arrival.outcome.reason)
                failed = arrival.outcome
        for name in self._lacking(share):
            run = self._there.runs[name]
            if self._there.failed.get(name) != run:
                self._arrivals.begin(name, self._there.worlds[name], run, candidate)
        return failed

    def is_incomplete(self, share: float) -> bool:
        """Return whether a server that is there and should have the candidate does not have it."""
        return bool(self._lacking(share))

    def keep(self) -> Outcome:
        """Make the servers that have the candidate load it at their start."""
        found = self._there.ask(self._there.unkept, _keep)
        for name, outcome in found.items():
            if not outcome.is_good:
                return replace(outcome, reason=f"{name}: {outcome.reason}" if name else outcome.reason)
            self._there.change(name, is_kept=True)
        if not self._there.is_fleet:
            return found[ALONE]
        names = self._there.members.names
        num_kept = sum(name in self.states and self.states[name].is_kept for name in names)
        return Outcome(True, f"{num_kept} of {len(names)} servers will load it at their start")

    def settle(self) -> Outcome | None:
        """Unload the former stable pair; None while a server has not done so, or is away."""
        ready = [name for name in self._there.runs if name in self._told - self._done]
        found = self._there.attempt(ready, lambda name, world: world.settle())
        self._done |= found.keys()
        if self._there.is_fleet:  # what was away settles at the next look, when it has the table
            for name, outcome in self._there.attempt(self._there.unkept, _keep).items():
                says = "" if outcome.is_good else outcome.reason
                self._there.change(name, is_kept=outcome.is_good, says=says)
        members = self._there.members
        for name in members.unadopted:
            if name in self._done and name in self._there.runs:
                self._there.change(name, says=WAITS_TO_ADOPT)
        if not self._is_done or members.unadopted:
            return None
        if not self._there.is_fleet:
            return found[ALONE]
        return Outcome(True, f"{len(members.names)} servers serve it")

    def unload(self) -> str | None:
        """Unload the candidate; None while a server has not done so, or is away."""
        if not self._arrivals.stop():
            return None
        left = [name for name in self._there.runs if name in self._told - self._done]
        found = self._there.attempt(left, lambda name, world: world.unload())
        self._done |= found.keys()
        if not self._there.is_fleet:
            return found[ALONE]
        for name in found:
            self._there.change(name, run=None, is_kept=False)
        num = len(self._there.members.names)
        return f"{num} servers are without the candidate" if self._is_done else None

    def write(self, table: ArmTable, without: ArmTable, *, is_stable: bool) -> None:
        """Give each server that is there its table of arms.

        Args:
            table: For servers that have the candidate.
            without: For the others.
            is_stable: Whether the candidate is the stable pair in ``table``, so that a server needs to load
                the candidate at its start.
        """
        names = self._there.runs if self._there.is_fleet else self._there.worlds
        serving = self._there.serving

        def ask(name: str, world: World) -> None:
            has_it = self.states[name].is_kept if is_stable else name in serving
            world.write(table if has_it or not self._there.is_fleet else without)

        told = self._there.ask(names, ask)
        if self._generation != table.generation:
            self._generation = table.generation
            self._told.clear()
        self._told |= {name for name in told if not is_stable or self.states[name].is_kept}

    def read(self, canary_id: str, runtime: str) -> tuple[list[ObservedRequest], list[dict[str, Any]]]:
        """Read what the routers have observed since the last time; requests and divergences of a rollout."""
        found = self._observations()
        requests, divergences = [], []
        for name, (observations, offset) in found.items():
            ours = [each for each in observations if each.canary_id == canary_id]
            requests += [
                replace(request, server=name) for each in ours for request in observed_requests(each, runtime)
            ]
            divergences += [
                vars(each.divergence) for each in ours if each.divergence is not None and not each.overridden
            ]
            until_s = max([self.states[name].complete_until_s, *(each.oldest_open_at_s for each in ours)])
            self._there.change(name, offset=offset, complete_until_s=until_s)
        return requests, divergences

    def is_drained(self, since_s: float) -> bool:
        """Return whether all requests have finished that arrived before a unix time."""
        found = self._observations()
        return all(any(each.oldest_open_at_s > since_s for each in read) for read, _ in found.values())

    def samples(self) -> list[Sample]:
        """Measure memory and CPU time of both pairs on each server that has the candidate."""
        found = self._there.ask(self._there.serving, lambda name, world: world.sample())
        return [replace(sample, server=name) for name, sample in found.items()]

    def watch(self, socket: str, now_s: float) -> Watched:
        """Look at the candidate's processes."""
        found = self._there.ask(self._there.serving, lambda name, world: world.listener(socket))
        self._answered_at_s = {name: self._answered_at_s.get(name, now_s) for name in found}
        seen = Watched()
        for name, listener in found.items():
            if not listener:
                down_s = now_s - self._answered_at_s[name]
                seen = max(seen, Watched(down_s, seen.has_restarted, name), key=lambda each: each.down_s)
                continue
            self._answered_at_s[name] = now_s
            if self.states[name].listener not in (0, listener):
                seen = Watched(seen.down_s, has_restarted=True, server=name)
            self._there.change(name, listener=listener)
        return seen

    def rest(self) -> None:
        """Forget since when the candidate has refused connections, because it need not answer."""
        self._answered_at_s.clear()

    @property
    def _is_done(self) -> bool:
        members = self._there.members
        return bool(members.names or members.strangers) and self._done.issuperset(members.names)

    def _observations(self) -> dict[str, tuple[list[Observation], int]]:
        """Read what the routers have observed since the last time, with the next offset."""

        def ask(name: str, world: World) -> tuple[list[Observation], int]:
            return world.observations(self.states[name].offset)

        return self._there.ask(self._there.serving, ask)

    def _lacking(self, share: float) -> list[str]:
        names, serving = self._there.members.names, self._there.serving
        num = max(1, math.ceil(share * len(names)))
        return [
            name
            for name in self._there.here(names[:num])
            if name not in serving and not self.states[name].is_kept
        ]


def _keep(name: str, world: World) -> Outcome:
    return world.keep()
