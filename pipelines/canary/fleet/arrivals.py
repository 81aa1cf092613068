"""Brings the candidate up on servers of a fleet in the background."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from pipelines.canary.controller.facts import Outcome
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.background import in_background
from pipelines.errors import DraftproofError


@dataclass(frozen=True)
class Arrival:
    """A server that has been given the candidate, or could not be.

    Attributes:
        run: Run of the server (``World.run``).
        outcome: Result of the first step that failed, else of the probes.
        offset: End of the router's log before the candidate got any request.
    """

    run: str
    outcome: Outcome
    offset: int = 0


class Arrivals:
    """Checks, loads and probes the candidate on servers, while the controller goes on looking."""

    def __init__(self) -> None:
        self._pending: dict[str, Future[Arrival]] = {}
        self._stops = threading.Event()

    def begin(self, server: str, world: World, run: str, candidate: str) -> None:
        """Bring the candidate up on a server, unless that has begun already.

        Args:
            server: Name of the server.
            world: The server.
            run: Its current run.
            candidate: Name of the candidate, which all servers must find under it.
        """
        if server not in self._pending:
            self._pending[server] = in_background(partial(self._bring_up, server, world, run, candidate))

    def finished(self) -> dict[str, Arrival]:
        """Return the servers that have been brought up, or not, since the last call."""
        done = {server: future for server, future in self._pending.items() if future.done()}
        for server in done:
            del self._pending[server]
        return {server: future.result() for server, future in done.items()}

    def stop(self) -> bool:
        """Begin no further step; returns whether none is running any more."""
        self._stops.set()
        self.finished()
        return not self._pending

    def _bring_up(self, server: str, world: World, run: str, candidate: str) -> Arrival:
        outcome = Outcome(False, "the rollout ended before the candidate was loaded")
        for step in (world.preflight, world.load, world.probe):
            if self._stops.is_set():
                break
            try:
                outcome = step()
            except DraftproofError as error:
                outcome = Outcome(False, str(error))
            found = outcome.evidence.get("socket", candidate)
            if outcome.is_good and found != candidate:
                outcome = Outcome(False, "has another candidate under this name", outcome.evidence)
            if not outcome.is_good:
                break
        if (
            outcome.needs_review
        ):  # a person has decided on the same counts at the first server, or the judge will
            outcome = replace(outcome, is_good=True)
        offset = 0
        if outcome.is_good:
            try:
                offset = world.observations_end()
            except DraftproofError as error:
                outcome = Outcome(False, str(error))
        named = replace(outcome, reason=f"{server}: {outcome.reason}")
        return Arrival(run, named, offset)
