"""The servers of a rollout: one, or those of a fleet.

Every method asks all servers concurrently. A server that does not answer is away until the next look: it gets
nothing and nothing is waited for, and its lease ends by itself. What one server does is its ``World``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pipelines.canary.checks.observed_requests import observed_requests
from pipelines.canary.controller.facts import Outcome
from pipelines.canary.controller.rollout import ServerState, ServerStates
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.arrivals import Arrivals
from pipelines.canary.fleet.background import in_background
from pipelines.canary.fleet.members import WAITS_TO_ADOPT, Members, Membership
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.resources import Sample
from pipelines.configuration import located
from pipelines.errors import DraftproofError, RequestTimeoutError, ServerUnavailableError
from pipelines.router.arms import ArmTable

_Answer = TypeVar("_Answer")
_Ask = Callable[[str, World], _Answer]

_GONE = "gone: its address has not been found for longer than a lease"

ALONE = ""
"""Name of the server in a rollout of one server."""


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

    Attributes:
        states: What is known of each server; the controller stores it with each look.

    Args:
        worlds: World by server: that of ``ALONE``, or those of a fleet whose servers stay.
        states: What a controller stored before.
        find: Finds the servers of a fleet at each look; None if they stay.
    """

    def __init__(
        self, worlds: Mapping[str, World], states: ServerStates, find: Membership | None = None
    ) -> None:
        self.states: ServerStates = {**states, **{name: states.get(name, ServerState()) for name in worlds}}
        self._members = Members.listed(worlds)
        self._find = find
        self._is_fleet = ALONE not in worlds
        self._arrivals = Arrivals()
        self._runs: dict[str, str] = {}
        self._loaded_on = ""  # the server on which the candidate was loaded first
        self._failed: dict[str, str] = {}  # runs in which the candidate could not be brought up
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
        if self._find is not None:
            self._members = self._find(candidate, is_stable=is_stable)
            self._note_members()
        self._runs = dict.fromkeys(self._worlds, "")
        self._runs = self._try(self._worlds, _run)
        for name in self._runs:
            if not self._failed.get(name):
                self._say(name, "")

    def _note_members(self) -> None:
        """Note who has come and gone; what is known of servers that had the candidate stays."""
        members = self._members
        present = (*members.names, *members.strangers)
        had_it = {name for name, state in self.states.items() if replace(state, says="") != ServerState()}
        for name in (*had_it, *present):
            self.states.setdefault(name, ServerState())
            self._say(name, "" if name in present else _GONE)
        self.states = {name: self.states[name] for name in self.states if name in had_it or name in present}
        for name, why in {**members.away, **members.strangers}.items():
            self._say(name, why)
        for name in members.adopted & members.worlds.keys():
            self._change(name, is_kept=True)

    @property
    def waits_for(self) -> str:
        """Why the rollout must wait; "" if a majority of the servers is there."""
        names = (*self._members.names, *self._members.strangers)
        missing = [name for name in names if name not in self._runs]
        if 2 * len(missing) < len(names):
            return ""
        return f"a majority of the servers; {len(missing)} of {len(names)} are away: {', '.join(missing)}"

    def preflight(self) -> Outcome | None:
        """Check the candidate on all servers that are there; None while the first one is away."""
        found = self._ask(self._runs, lambda name, world: world.preflight())
        if not self._is_fleet or self._first not in found:
            return found.get(self._first)
        for name, outcome in found.items():
            if not outcome.is_good:
                return replace(outcome, reason=f"{name}: {outcome.reason}")
        if len({outcome.evidence["socket"] for outcome in found.values()}) > 1:
            seen = {name: outcome.evidence["engines"] for name, outcome in found.items()}
            listed = "; ".join(f"{name}: {engines}" for name, engines in seen.items())
            return Outcome(False, f"servers have different candidates under one name: {listed}", seen)
        return found[self._first]

    def load(self) -> Outcome | None:
        """Load the candidate on the first server; None while that is away."""
        self._loaded_on = self._first
        return self._ask(self._here([self._first]), lambda name, world: world.load()).get(self._first)

    def probe(self) -> Outcome | None:
        """Probe the candidate on the first server; None while that is away."""

        def ask(name: str, world: World) -> tuple[Outcome, int]:
            for step in (world.preflight, world.load) if is_another else ():
                outcome = step()
                if not outcome.is_good:
                    return outcome, 0
            return world.probe(), world.observations_end()

        # The one on which it was loaded is gone, or an earlier controller has loaded it.
        is_another = self._is_fleet and self._loaded_on != self._first

        found = self._ask(self._here([self._first]), ask).get(self._first)
        if found is None:
            return None
        outcome, offset = found
        if self._is_fleet and (outcome.is_good or outcome.needs_review):
            self._change(self._first, run=self._runs[self._first], listener=0, offset=offset)
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
                self._change(name, run=arrival.run, listener=0, offset=arrival.offset, says="")
            elif self._is_still_in(name, arrival.run):
                self._failed[name] = arrival.run
                self._say(name, arrival.outcome.reason)
                failed = arrival.outcome
        for name in self._lacking(share):
            if self._failed.get(name) != self._runs[name]:
                self._arrivals.begin(name, self._worlds[name], self._runs[name], candidate)
        return failed

    def is_incomplete(self, share: float) -> bool:
        """Return whether a server that is there and should have the candidate does not have it."""
        return bool(self._lacking(share))

    def keep(self) -> Outcome:
        """Make the servers that have the candidate load it at their start."""
        found = self._ask(self._unkept, _keep)
        for name, outcome in found.items():
            if not outcome.is_good:
                return replace(outcome, reason=f"{name}: {outcome.reason}" if name else outcome.reason)
            self._change(name, is_kept=True)
        if not self._is_fleet:
            return found[ALONE]
        names = self._members.names
        num_kept = sum(name in self.states and self.states[name].is_kept for name in names)
        return Outcome(True, f"{num_kept} of {len(names)} servers will load it at their start")

    def settle(self) -> Outcome | None:
        """Unload the former stable pair; None while a server has not done so, or is away."""
        ready = [name for name in self._runs if name in self._told - self._done]
        found = self._try(ready, lambda name, world: world.settle())
        self._done |= found.keys()
        if self._is_fleet:  # servers that were away; they settle at the next look, when they have the table
            for name, outcome in self._try(self._unkept, _keep).items():
                self._change(name, is_kept=outcome.is_good, says="" if outcome.is_good else outcome.reason)
        for name in self._members.unadopted:
            if name in self._done and name in self._runs:
                self._say(name, WAITS_TO_ADOPT)
        if not self._is_done or self._members.unadopted:
            return None
        return Outcome(True, f"{self._num_members} servers serve it") if self._is_fleet else found[ALONE]

    def unload(self) -> str | None:
        """Unload the candidate; None while a server has not done so, or is away."""
        if not self._arrivals.stop():
            return None
        left = [name for name in self._runs if name in self._told - self._done]
        found = self._try(left, lambda name, world: world.unload())
        self._done |= found.keys()
        if not self._is_fleet:
            return found[ALONE]
        for name in found:
            self._change(name, run=None, is_kept=False)
        return f"{self._num_members} servers are without the candidate" if self._is_done else None

    def write(self, table: ArmTable, without: ArmTable, *, is_stable: bool) -> None:
        """Give each server that is there its table of arms.

        Args:
            table: For servers that have the candidate.
            without: For the others.
            is_stable: Whether the candidate is the stable pair in ``table``, so that a server needs to load
                the candidate at its start.
        """
        names = self._runs if self._is_fleet else self._worlds

        def ask(name: str, world: World) -> None:
            has_it = self.states[name].is_kept if is_stable else name in self._serving
            world.write(table if has_it or not self._is_fleet else without)

        told = self._ask(names, ask)
        if self._generation != table.generation:
            self._generation = table.generation
            self._told.clear()
        self._told |= {name for name in told if not is_stable or self.states[name].is_kept}

    def read(self, canary_id: str, runtime: str) -> tuple[list[ObservedRequest], list[dict[str, Any]]]:
        """Read what the routers have observed since the last time; requests and divergences of a rollout."""
        found = self._ask(self._serving, lambda name, world: world.observations(self.states[name].offset))
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
            self._change(name, offset=offset, complete_until_s=until_s)
        return requests, divergences

    def is_drained(self, since_s: float) -> bool:
        """Return whether all requests have finished that arrived before a unix time."""
        found = self._ask(self._serving, lambda name, world: world.observations(self.states[name].offset))
        return all(any(each.oldest_open_at_s > since_s for each in read) for read, _ in found.values())

    def samples(self) -> list[Sample]:
        """Measure memory and CPU time of both pairs on each server that has the candidate."""
        found = self._ask(self._serving, lambda name, world: world.sample())
        return [replace(sample, server=name) for name, sample in found.items()]

    def watch(self, socket: str, now_s: float) -> Watched:
        """Look at the candidate's processes."""
        found = self._ask(self._serving, lambda name, world: world.listener(socket))
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
            self._change(name, listener=listener)
        return seen

    def rest(self) -> None:
        """Forget since when the candidate has refused connections, because it need not answer."""
        self._answered_at_s.clear()

    @property
    def _worlds(self) -> Mapping[str, World]:
        return self._members.worlds

    @property
    def _num_members(self) -> int:
        return len(self._members.names)

    @property
    def _first(self) -> str:
        return next(iter(self._members.names), "")

    @property
    def _is_done(self) -> bool:
        is_known = bool(self._members.names or self._members.strangers)
        return is_known and self._done.issuperset(self._members.names)

    @property
    def _serving(self) -> list[str]:
        """Servers that are there and have the candidate."""
        return [name for name, run in self._runs.items() if self.states[name].run == run]

    @property
    def _unkept(self) -> list[str]:
        """Servers that are there and have the candidate, but would not load it at their start."""
        return [name for name in self._serving if not self.states[name].is_kept]

    def _lacking(self, share: float) -> list[str]:
        num = max(1, math.ceil(share * self._num_members))
        serving = self._serving
        return [
            name
            for name in self._here(self._members.names[:num])
            if name not in serving and not self.states[name].is_kept
        ]

    def _is_still_in(self, name: str, run: str) -> bool:
        """Return whether a server is still in a run; it may have ended since the look began."""
        return name in self._runs and self._try([name], _run).get(name) == run

    def _here(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._runs]

    def _ask(self, names: Iterable[str], ask: _Ask[_Answer]) -> dict[str, _Answer]:
        """Ask servers concurrently.

        Raises:
            DraftproofError: One of them refused; all have been asked.
        """
        if not self._is_fleet:
            return {name: ask(name, self._worlds[name]) for name in names}
        asked = {name: in_background(partial(ask, name, self._worlds[name])) for name in names}
        found: dict[str, _Answer] = {}
        refused: DraftproofError | None = None
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except (ServerUnavailableError, RequestTimeoutError) as error:
                self._runs.pop(name, None)
                self._say(name, f"away: {error}")
            except DraftproofError as error:
                refused = refused or located(name, error)
        if refused is not None:
            raise refused
        return found

    def _try(self, names: Iterable[str], ask: _Ask[_Answer]) -> dict[str, _Answer]:
        """Ask servers; those of a fleet that refuse are away, so they are asked again later."""
        if not self._is_fleet:
            return self._ask(names, ask)

        def asked(name: str, world: World) -> _Answer:
            try:
                return ask(name, world)
            except DraftproofError as error:
                raise ServerUnavailableError(str(error)) from None

        return self._ask(names, asked)

    def _say(self, name: str, says: str) -> None:
        self._change(name, says=says)

    def _change(self, name: str, **changes: Any) -> None:
        self.states[name] = replace(self.states[name], **changes)


def _keep(name: str, world: World) -> Outcome:
    return world.keep()


def _run(name: str, world: World) -> str:
    return world.run()
