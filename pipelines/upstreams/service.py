"""One process that passes requests on and runs the rollout beside them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from pathlib import Path

import uvloop

from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import World
from pipelines.canary.report.record import judgement
from pipelines.canary.report.text import show_cycle
from pipelines.canary.run_files import arms_file, observations_file, state_file
from pipelines.canary.start import canary_id_at, read_together, roll_out
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import DRAIN_S
from pipelines.deploy.triton.place import new_key
from pipelines.errors import CanaryError, DraftproofError
from pipelines.front_door.serving import listen
from pipelines.program import EXIT_CODES, EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS
from pipelines.router.arms import ArmSetting, ArmTable, LiveArms, read_table
from pipelines.router.observation import unix_time_s
from pipelines.router.observation_log import ObservationLog
from pipelines.router.routing import Routing
from pipelines.upstreams.application import Application
from pipelines.upstreams.metrics import UpstreamMetrics, Weights
from pipelines.upstreams.reading import Piece
from pipelines.upstreams.settings import UpstreamsSettings, endpoint_of
from pipelines.upstreams.upstream import Upstream
from pipelines.upstreams.world import UpstreamWorld

_ENDS_WITHIN_S = 30.0


class Service:
    """A service of one or two servers, and the rollout of the second.

    Args:
        settings: The servers.
        path: File of the settings.
        run_directory: Folder of the service's state.
        again: Whether a candidate is rolled out whose last rollout has ended.

    Raises:
        CanaryError: The plan, the limits or what an earlier rollout left cannot be used.
        InvalidRequestError: An address or a key is invalid.
    """

    def __init__(self, settings: UpstreamsSettings, path: Path, run_directory: Path, *, again: bool) -> None:
        self._settings = settings
        self._run = run_directory
        self._again = again
        self._endpoints = {each.name: endpoint_of(each, path) for each in settings.upstreams}
        self._plan, self._limits = read_together(settings.plan_file(path))
        self._arms = LiveArms(arms_file(run_directory), self._without_rollout())
        self._stopping = threading.Event()
        self._exit_code = EXIT_PASS
        self._check_arms(path)

    def run(self, front_door: FrontDoorSettings, port: int) -> int:
        """Serve until the process is told to stop.

        Args:
            front_door: Who may ask, and limits.
            port: Port to listen on; 0 for any that is free.

        Returns:
            The exit code.

        Raises:
            ServerStartError: The port cannot be listened on, or keys or certificate cannot be read.
        """
        uvloop.run(self._serve(front_door, port))
        return self._exit_code

    async def _serve(self, front_door: FrontDoorSettings, port: int) -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        listening = front_door.listen(port)
        async with contextlib.AsyncExitStack() as stack:
            upstreams = {
                name: Upstream(name, endpoint, self._settings.timeout_s)
                for name, endpoint in self._endpoints.items()
            }
            for upstream in upstreams.values():
                stack.push_async_callback(upstream.close)
            log = ObservationLog(observations_file(self._run))
            stack.callback(log.close)
            metrics = UpstreamMetrics(self._weights, lambda: self._latest_rollout()[1])
            routing: Routing[Piece] = Routing(self._arms, log, metrics.count)
            stack.push_async_callback(routing.close)
            application = Application(routing, upstreams, front_door, metrics, new_key(self._run))
            await stack.enter_async_context(listen(application.application(), front_door, listening))
            print(f"listening on {front_door.url(listening.getsockname()[1])}", flush=True)
            rollout = threading.Thread(target=self._roll_out, name="rollout", daemon=True)
            rollout.start()
            await stopping.wait()
            self._stopping.set()
            await application.in_progress.drain(DRAIN_S)
            await asyncio.to_thread(rollout.join, _ENDS_WITHIN_S)

    def _roll_out(self) -> None:
        """Run the rollout, on a thread of its own; requests go on when it ends or fails."""
        candidate = self._settings.candidate
        if candidate is None:
            return
        if not self._again:
            latest, phase = self._latest_rollout()
            if latest == candidate.name and phase in ENDED:
                return
        self._exit_code = EXIT_INTERRUPTED
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
            self._exit_code = EXIT_FAIL
            print(f"error: {error}; the stable server gets all requests", file=sys.stderr, flush=True)
            return
        judged = judgement(record)
        self._exit_code = EXIT_CODES[judged.verdict]
        print(f"{candidate.name}: {judged.phase}, {judged.verdict}: {judged.reason}", flush=True)

    def _weights(self) -> Weights:
        table = self._arms.read()
        weights = table.weights(unix_time_s())
        return {(arm, setting.socket): weights[arm] for arm, setting in table.settings.items()}

    def _latest_rollout(self) -> tuple[str, str]:
        """Return candidate and phase of the latest rollout; two empty texts without one."""
        path = state_file(self._run)
        if not path.is_file():
            return "", ""
        with contextlib.closing(Store(path)) as store:
            rollout = store.latest()
            return (rollout.recipe_candidate, store.progress(rollout).position.phase) if rollout else ("", "")

    def _new(self, candidate: str) -> Rollout:
        table, now_s = self._arms.read(), time.time()
        if table.stable.socket == candidate:
            raise CanaryError(
                f"the candidate {candidate} is the server in service",
                "make it stable in the settings; nothing was changed",
            )
        return Rollout(
            canary_id=canary_id_at(now_s),
            recipe_stable=table.stable.socket,
            recipe_candidate=candidate,
            began_at_s=now_s,
            plan=self._plan,
            limits=self._limits,
            stable_socket=table.stable.socket,
            control_socket="",
            generation=table.generation,
        )

    def _world(self, rollout: Rollout) -> World:
        return UpstreamWorld(self._run, self._endpoints, rollout.stable_socket, rollout.recipe_candidate)

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _StoppedError

    def _without_rollout(self) -> ArmTable:
        return ArmTable(
            generation=0,
            canary_id="",
            salt="",
            stable=ArmSetting(self._settings.stable.name, 1.0),
            candidate=None,
            control=None,
            shadow=None,
            replays_match="stable",
            bands=self._plan.bands,
            lease_until_s=0.0,
            slow_after_s=self._plan.slow_after_s,
        )

    def _check_arms(self, path: Path) -> None:
        """Refuse settings without a server that an earlier rollout put into service."""
        table_file = arms_file(self._run)
        if not table_file.is_file():
            return
        named = {setting.socket for setting in read_table(table_file).settings.values()}
        if missing := sorted(named - self._endpoints.keys()):
            raise CanaryError(
                f"{path} does not name {', '.join(missing)}, which gets requests by {table_file}",
                "name it as stable or candidate, or remove that file to begin with the stable server",
            )


class _StoppedError(Exception):
    """The process was told to stop."""
