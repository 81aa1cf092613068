"""The rollout of a service's candidate, on a thread beside the requests."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import World
from pipelines.canary.report.record import judgement
from pipelines.canary.report.text import show_cycle
from pipelines.canary.run_files import arms_file, state_file
from pipelines.canary.start import new_rollout, read_together, roll_out
from pipelines.errors import CanaryError, DraftproofError
from pipelines.program import EXIT_CODES, EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS
from pipelines.router.arms import ArmTable, LiveArms, read_table
from pipelines.upstreams.settings import UpstreamsSettings
from pipelines.upstreams.world import UpstreamWorld
from pipelines.validation.openai.server.endpoint import Endpoint

_ENDS_WITHIN_S = 30.0


class CandidateRollout:
    """Rolls the candidate out, if there is one; requests go on when that ends or fails.

    Attributes:
        arms: The table of arms, which the rollout changes.
        exit_code: What the process returns at its end.

    Args:
        settings: Settings of the service.
        path: Their file.
        run_directory: Folder of the service's state.
        endpoints: The servers by their names; to be complete before ``start``.
        again: Whether a candidate is rolled out whose last rollout has ended.

    Raises:
        CanaryError: The plan, the limits or what an earlier rollout left cannot be used.
    """

    def __init__(
        self,
        settings: UpstreamsSettings,
        path: Path,
        run_directory: Path,
        endpoints: Mapping[str, Endpoint],
        *,
        again: bool,
    ) -> None:
        self._settings = settings
        self._run = run_directory
        self._endpoints = endpoints
        self._again = again
        self._plan, self._limits = read_together(settings.plan_file(path))
        self._check_arms(path)
        alone = ArmTable.without_rollout(settings.stable.name, self._plan.bands, self._plan.slow_after_s)
        self.arms = LiveArms(arms_file(run_directory), alone)
        self.exit_code = EXIT_PASS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._roll_out, name="rollout", daemon=True)

    def start(self) -> None:
        """Begin the rollout, or resume it."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the rollout to the next process, and wait until the thread has ended."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_ENDS_WITHIN_S)

    def phase(self) -> str:
        """Return the phase of the latest rollout; "" without one."""
        return self._latest()[1]

    def _roll_out(self) -> None:
        candidate = self._settings.candidate
        if candidate is None:
            return
        latest, phase = self._latest()
        if latest == candidate.name and phase in ENDED and not self._again:
            return
        self.exit_code = EXIT_INTERRUPTED
        try:
            record = roll_out(
                state_file(self._run),
                candidate.name,
                lambda: self._new(candidate.name),
                self._world,
                show_cycle,
                self._sleep,
            )
        except _StoppedError:
            return
        except DraftproofError as error:
            self.exit_code = EXIT_FAIL
            print(f"error: {error}; the stable server gets all requests", file=sys.stderr, flush=True)
            return
        judged = judgement(record)
        self.exit_code = EXIT_CODES[judged.verdict]
        print(f"{candidate.name}: {judged.phase}, {judged.verdict}: {judged.reason}", flush=True)

    def _latest(self) -> tuple[str, str]:
        """Return candidate and phase of the latest rollout; two empty texts without one."""
        path = state_file(self._run)
        if not path.is_file():
            return "", ""
        with contextlib.closing(Store(path)) as store:
            rollout = store.latest()
            return (rollout.recipe_candidate, store.progress(rollout).position.phase) if rollout else ("", "")

    def _new(self, candidate: str) -> Rollout:
        table = self.arms.read()
        if table.stable == candidate:
            raise CanaryError(
                f"the candidate {candidate} is the server in service",
                "make it stable in the settings; nothing was changed",
            )
        served = table.stable
        return new_rollout(served, candidate, served, table.generation, self._plan, self._limits)

    def _world(self, rollout: Rollout) -> World:
        return UpstreamWorld(self._run, self._endpoints, rollout.stable_socket, rollout.recipe_candidate)

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _StoppedError

    def _check_arms(self, path: Path) -> None:
        """Refuse settings without a server that an earlier rollout put into service."""
        table_file = arms_file(self._run)
        if not table_file.is_file():
            return
        named = set(read_table(table_file).sockets.values())
        if missing := sorted(named - {each.name for each in self._settings.upstreams}):
            raise CanaryError(
                f"{path} does not name {', '.join(missing)}, which gets requests by {table_file}",
                "name it as stable or candidate, or remove that file to begin with the stable server",
            )


class _StoppedError(Exception):
    """The process was told to stop."""
