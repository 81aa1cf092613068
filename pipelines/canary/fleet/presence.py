"""Knows which servers of a rollout are there, and asks them.

All servers are asked concurrently. A server that does not answer is away until the next look: it gets nothing
and nothing is waited for, and its lease ends by itself. What one server does is its ``World``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pipelines.canary.controller.rollout import ServerState, ServerStates
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.background import in_background
from pipelines.canary.fleet.members import Members, Membership
from pipelines.configuration import located
from pipelines.errors import DraftproofError, RequestTimeoutError, ServerUnavailableError

_Answer = TypeVar("_Answer")
_Ask = Callable[[str, World], _Answer]

_GONE = "gone: its address has not been found for longer than a lease"

ALONE = ""
"""Name of the server in a rollout of one server."""


class Presence:
    """The servers of a rollout that are there, and what is known of each.

    Attributes:
        is_fleet: Whether the rollout is that of a fleet.
        members: All servers at the latest look.
        runs: Run of each server that is there (``World.run``).
        states: State of each server.
        failed: Runs in which the candidate could not be brought up, by server.

    Args:
        worlds: World by server: that of ``ALONE``, or those of a fleet whose servers stay.
        states: What a controller stored before.
        find: Finds the servers of a fleet at each look; None if they stay.
    """

    def __init__(self, worlds: Mapping[str, World], states: ServerStates, find: Membership | None) -> None:
        self.is_fleet = ALONE not in worlds
        self.members = Members.listed(worlds)
        self.runs: dict[str, str] = {}
        self.states: ServerStates = {**states, **{name: states.get(name, ServerState()) for name in worlds}}
        self.failed: dict[str, str] = {}
        self._find = find

    def look_around(self, candidate: str, *, is_stable: bool) -> None:
        """Find out which servers are there; see ``Membership``."""
        if self._find is not None:
            self.members = self._find(candidate, is_stable=is_stable)
            self._note_members()
        self.runs = dict.fromkeys(self.worlds, "")
        self.runs = self.attempt(self.worlds, _run)
        for name in self.runs:
            if not self.failed.get(name):
                self.change(name, says="")

    def _note_members(self) -> None:
        """Note who has come and gone; what is known of servers that had the candidate stays."""
        members = self.members
        present = (*members.names, *members.strangers)
        had_it = {name for name, state in self.states.items() if replace(state, says="") != ServerState()}
        for name in (*had_it, *present):
            self.states.setdefault(name, ServerState())
            self.change(name, says="" if name in present else _GONE)
        self.states = {name: self.states[name] for name in self.states if name in had_it or name in present}
        for name, why in {**members.away, **members.strangers}.items():
            self.change(name, says=why)
        for name in members.adopted & members.worlds.keys():
            self.change(name, is_kept=True)

    @property
    def waits_for(self) -> str:
        """Why the rollout must wait; "" if a majority of the servers is there."""
        names = (*self.members.names, *self.members.strangers)
        missing = [name for name in names if name not in self.runs]
        if 2 * len(missing) < len(names):
            return ""
        return f"a majority of the servers; {len(missing)} of {len(names)} are away: {', '.join(missing)}"

    @property
    def worlds(self) -> Mapping[str, World]:
        """Servers that can be asked."""
        return self.members.worlds

    @property
    def first(self) -> str:
        """The server that gets the candidate first, also while it is away; "" if there is none."""
        return next(iter(self.members.names), "")

    @property
    def serving(self) -> list[str]:
        """Servers that are there and have the candidate."""
        return [name for name, run in self.runs.items() if self.states[name].run == run]

    @property
    def unkept(self) -> list[str]:
        """Servers that are there and have the candidate, but would not load it at their start."""
        return [name for name in self.serving if not self.states[name].is_kept]

    def here(self, names: Iterable[str]) -> list[str]:
        """Return those of some servers that are there."""
        return [name for name in names if name in self.runs]

    def is_still_in(self, name: str, run: str) -> bool:
        """Return whether a server is still in a run; it may have ended since the look began."""
        return name in self.runs and self.attempt([name], _run).get(name) == run

    def change(self, name: str, **changes: Any) -> None:
        """Change what is known of a server: fields of ``ServerState``."""
        self.states[name] = replace(self.states[name], **changes)

    def ask(self, names: Iterable[str], ask: _Ask[_Answer]) -> dict[str, _Answer]:
        """Ask servers concurrently; those that do not answer are away.

        Raises:
            DraftproofError: One of them refused; all have been asked.
        """
        if not self.is_fleet:
            return {name: ask(name, self.worlds[name]) for name in names}
        asked = {name: in_background(partial(ask, name, self.worlds[name])) for name in names}
        found: dict[str, _Answer] = {}
        refused: DraftproofError | None = None
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except (ServerUnavailableError, RequestTimeoutError) as error:
                self.runs.pop(name, None)
                self.change(name, says=f"away: {error}")
            except DraftproofError as error:
                refused = refused or located(name, error)
        if refused is not None:
            raise refused
        return found

    def attempt(self, names: Iterable[str], ask: _Ask[_Answer]) -> dict[str, _Answer]:
        """Ask servers; those of a fleet that refuse are away, so they are asked again later."""
        if not self.is_fleet:
            return self.ask(names, ask)

        def asked(name: str, world: World) -> _Answer:
            try:
                return ask(name, world)
            except DraftproofError as error:
                raise ServerUnavailableError(str(error)) from None

        return self.ask(names, asked)


def _run(name: str, world: World) -> str:
    return world.run()
