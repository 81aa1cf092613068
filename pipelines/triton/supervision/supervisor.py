"""Starts Triton, supervises it and its model processes, and replaces those that died or hang.

A dead model process is replaced by unloading and loading the model, while other models continue to answer
(docs/explanation/architecture.md). Triton itself notices neither case.

When the repository was rendered for another pair, Triton is started again with it while requests wait
(docs/decisions/rollouts.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.deploy.triton.models import ModelDependencies, models_at_start
from pipelines.errors import (
    DraftproofError,
    ProcessEndedError,
    RepositoryError,
    RequestCancelledError,
    ServerStartError,
    ServerUnavailableError,
)
from pipelines.process import ProcessIdentity
from pipelines.time_limit import within
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import Triton, triton_unavailable
from pipelines.triton.supervision.front_door_process import FrontDoorProcess
from pipelines.triton.supervision.heartbeat import Heartbeat
from pipelines.triton.supervision.triton_process import TritonProcess

_LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25  # between checks of the processes
_START_INTERVAL_S = 0.05  # between checks of a Triton that is starting
# To replace a model; after that Triton is restarted. Requests of the router wait as long (RETURNS_WITHIN_S).
RELOAD_TIMEOUT_S = 60.0
_SEARCH_INTERVAL_S = 5.0  # between searches for processes of newly loaded models
# A request that waits for an engine reaches it a moment before Triton knows that it has loaded. If that
# request ends the process, the load fails, or the start of Triton, and the next one usually succeeds.
_MAX_LOADS = 3
_MAX_STARTS = 3
_MAX_RESTARTS, _RESTARTS_WITHIN_S = 5, 120.0
_STOP_PATIENCE_S = 15.0  # for Triton's models to stop, after the time for requests in flight
_DRAIN_POLL_S = 0.05
_RELOAD_PAUSE_S = 5.0  # until models that could not be loaded are tried again


class Supervisor:
    """Supervises one server.

    Attributes:
        num_restarts: Restarts of Triton.
        num_replaced: Replaced processes by model.

    Args:
        repository: The rendered repository.
        drain_s: How long to wait for open requests at the end.
        triton: Connections to Triton.
        calls: Tracks open requests.
        process: The Triton that was just started.
        start: Starts another one.
        stopping: Set to make ``run`` return.
        reloading: Set to make Triton start again with what the repository holds by then.
    """

    def __init__(
        self,
        repository: Path,
        drain_s: int,
        triton: Triton,
        calls: OpenCalls,
        process: TritonProcess,
        start: Callable[[], TritonProcess],
        stopping: asyncio.Event,
        reloading: asyncio.Event,
    ) -> None:
        self.num_restarts = 0
        self.num_replaced: dict[str, int] = {}
        self._repository = repository
        self._drain_s = drain_s
        self._triton = triton
        self._calls = calls
        self._process = process
        self._new_process = start
        self._is_serving = False
        self._stopping = stopping
        self._reloading = reloading
        self._is_reloading = False
        self._models: dict[str, ProcessIdentity] = {}
        self._replacing: dict[str, asyncio.Task[None]] = {}
        self._heartbeat = Heartbeat(triton, calls)
        self._dependencies = ModelDependencies(repository)

    async def run(self, front_door: FrontDoorProcess | None = None) -> None:
        """Serve until ``stopping`` is set.

        Args:
            front_door: Asks models past the gateway, so Triton is stopped after it; None if there is none.

        Raises:
            ServerStartError: Triton cannot be started or keeps crashing.
        """
        restarts: list[float] = []
        try:
            await self._start()
            while not self._stopping.is_set():
                await self._watch()
                if self._stopping.is_set():
                    break
                if self._reloading.is_set():
                    await self._reload()
                    continue
                now_s = time.monotonic()
                restarts = [at_s for at_s in restarts if now_s - at_s < _RESTARTS_WITHIN_S] + [now_s]
                if len(restarts) > _MAX_RESTARTS:
                    raise ServerStartError(
                        f"Triton keeps crashing: {len(restarts)} times in {_RESTARTS_WITHIN_S:g} s",
                        "read its last lines in the server's log",
                    )
                self.num_restarts += 1
                self._process = self._new_process()
                await self._start()
        finally:
            await self._end(front_door)

    async def opened(self, model: str) -> None:
        """Wait while the server reloads its models; refuse a request to a model that cannot answer.

        Raises:
            ServerUnavailableError: The server is starting or stopping, or the model is being replaced.
        """
        while self._is_reloading and not self._stopping.is_set():
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._stopping.is_set():
            what, remedy = "the server is shutting down", "use another server"
        elif not self._is_serving:
            what, remedy = "the server is starting", "send the request again later"
        elif not self._replacing.keys().isdisjoint(self._dependencies.needed_by(model)):
            what, remedy = f"the model is being replaced: {model}", "send the request again"
        else:
            return
        raise ServerUnavailableError(what, remedy)

    async def is_ready(self) -> bool:
        """Whether all models that the server loads at startup answer."""
        if not self._is_serving or self._stopping.is_set():
            return False
        wanted = models_at_start(self._repository)
        return all(map(self._can_answer, wanted)) and await self._triton.ready_models() >= set(wanted)

    async def is_model_ready(self, model: str) -> bool:
        """Whether a model answers."""
        if not self._is_serving or not self._can_answer(model):
            return False
        return model.isprintable() and "/" not in model and await self._triton.is_ready(model)

    @property
    def unanswering(self) -> set[str]:
        """Models whose process died or hangs; their published metrics are stale."""
        return {model for model in self._models if not self._answers(model)}

    @property
    def models(self) -> tuple[str, ...]:
        """Models with a process of their own."""
        return tuple(sorted(self._models))

    def _answers(self, model: str) -> bool:
        process = self._models.get(model)
        answers = process is None or (process.is_alive and not process.is_stopped)
        return answers and model not in self._replacing and not self._heartbeat.is_silent(model)

    def _can_answer(self, model: str) -> bool:
        return all(map(self._answers, self._dependencies.needed_by(model)))

    async def _reload(self) -> None:
        """Let requests finish while new ones wait, and start Triton again until it serves the repository.

        Nothing else ends it: the front door and the second server of a rollout answer meanwhile.
        """
        _LOG.warning("loading the models of %s again", self._repository)
        self._is_reloading = True
        self._reloading.clear()
        try:
            await self._drain()
            self._forget_models()
            await self._process.stop(_STOP_PATIENCE_S)
            while not (self._is_serving or self._stopping.is_set()):
                try:
                    self._dependencies = ModelDependencies(self._repository)
                    self._process = self._new_process()
                    await self._start()
                except DraftproofError as error:
                    _LOG.error("the models cannot be loaded, trying again: %s", error)
                    with contextlib.suppress(asyncio.TimeoutError):
                        await within(_RELOAD_PAUSE_S, self._stopping.wait())
        finally:
            self._is_reloading = False

    async def _start(self) -> None:
        """Wait until the models of a Triton that was just started are ready.

        Raises:
            ServerStartError: Triton ended, or a model could not be loaded.
        """
        wanted = set(models_at_start(self._repository))
        for attempt in range(1, _MAX_STARTS + 1):
            while not (self._process.has_ended or self._stopping.is_set()):
                if await self._triton.ready_models() >= wanted:
                    self._search()
                    self._is_serving = True
                    return
                self._end_given_up()
                await self._pause(_START_INTERVAL_S)
            if self._stopping.is_set():
                return
            await self._process.clear()
            is_worth_another = self._process.met_its_race or self.num_restarts > 0  # it has served before
            if not is_worth_another or attempt == _MAX_STARTS:
                break
            _LOG.warning("Triton ended before it was ready: start %d of at most %d", attempt, _MAX_STARTS)
            self._process = self._new_process()
        raise ServerStartError(
            f"Triton ended before it was ready, with exit code {self._process.ended.result()}",
            "read the lines above; 'draftproof doctor' shows what this machine lacks",
        )

    async def _watch(self) -> None:
        """Supervise the processes until Triton has ended, or is to load its models again or to stop."""
        self._heartbeat = Heartbeat(self._triton, self._calls)  # pings to an earlier Triton no longer count
        next_search_s = time.monotonic() + _SEARCH_INTERVAL_S
        while not (self._process.has_ended or self._stopping.is_set() or self._reloading.is_set()):
            if time.monotonic() >= next_search_s:
                self._search()
                self._heartbeat.beat_triton()
                next_search_s = time.monotonic() + _SEARCH_INTERVAL_S
            if self._heartbeat.triton_hangs():
                _LOG.error("Triton does not answer")
                self._process.kill()
            self._end_given_up()
            self._watch_models()
            # Nothing else is awaited: if the pause lasts longer, this process is late, and no other hangs.
            paused_at_s = time.monotonic()
            await self._pause(LOOK_INTERVAL_S)
            self._heartbeat.excuse(max(0.0, time.monotonic() - paused_at_s - LOOK_INTERVAL_S))
        if self._process.has_ended:
            exit_code = self._process.ended.result()
            _LOG.error("Triton ended with exit code %s", exit_code)
            self._calls.end_all(triton_unavailable(f"it ended with exit code {exit_code}"))
            self._forget_models()
            await self._process.clear()

    def _watch_models(self) -> None:
        """Ping the models, and replace those that have ended or hang."""
        for model, process in tuple(self._models.items()):
            if model in self._replacing:
                continue
            if process.is_alive and not self._heartbeat.hangs(model):
                self._heartbeat.beat(model)
                continue
            reason = "its process did not answer" if process.is_alive else "its process has ended"
            process.kill()
            self._replacing[model] = asyncio.create_task(self._replace(model, reason))

    def _end_given_up(self) -> None:
        """Kill the processes for whose end Triton waits, so that it says what it could not load."""
        for model in self._process.given_up():
            _LOG.error("Triton gave up the process of model %s while it loaded; killing it", model)
            if process := self._process.find_models().get(model):
                process.kill()

    def _search(self) -> None:
        """Find the processes of models that were loaded since the last search."""
        found = self._process.find_models()
        self._models |= {model: found[model] for model in found.keys() - self._replacing.keys()}

    async def _replace(self, model: str, reason: str) -> None:
        """Replace a model's process; its open requests end with an error first."""
        triton = self._process
        try:
            error = ProcessEndedError(
                f"the model's process ended during the request: {model}: {reason}",
                "send the request again: it is replaced within seconds",
            )
            # An ensemble that asks it waits for ever, as Triton does not end its steps either.
            asked = (model, *self._dependencies.ensembles_with(model))
            num_ended = sum(self._calls.end(each, error) for each in asked)
            if not await self._triton.is_ready(model):
                self._models.pop(model, None)  # it was unloaded
                return
            began_s = time.monotonic()
            _LOG.error("model %s: %s; ended %d requests, replacing it", model, reason, num_ended)
            await within(RELOAD_TIMEOUT_S, self._load_again(model))
            self.num_replaced[model] = self.num_replaced.get(model, 0) + 1
            _LOG.warning("model %s answers again after %.1f s", model, time.monotonic() - began_s)
        except (DraftproofError, asyncio.TimeoutError) as error:
            _LOG.error("model %s cannot be replaced, so Triton is restarted: %r", model, error)
            triton.kill()  # by now it may have ended itself and another one may run
        finally:
            if self._replacing.get(model) is asyncio.current_task():
                del self._replacing[model]
                self._heartbeat.forget(model)
                self._search()

    async def _load_again(self, model: str) -> None:
        await self._triton.control(model, "unload")
        for attempt in range(1, _MAX_LOADS + 1):
            try:
                await self._triton.control(model, "load")
                break
            except RepositoryError as error:
                if attempt == _MAX_LOADS:
                    raise
                _LOG.warning("model %s: load %d of at most %d failed: %r", model, attempt, _MAX_LOADS, error)
        self._models.pop(model, None)

    def _forget_models(self) -> None:
        """Forget the models of a Triton that serves no longer, and what was to be done with them."""
        self._is_serving = False
        for task in self._replacing.values():
            task.cancel()
        self._replacing.clear()
        self._models.clear()

    async def _end(self, front_door: FrontDoorProcess | None) -> None:
        """Let requests finish, then stop Triton; the remaining requests get an error."""
        self._stopping.set()
        await self._drain(front_door)
        self._forget_models()
        await self._process.stop(_STOP_PATIENCE_S)

    async def _drain(self, front_door: FrontDoorProcess | None = None) -> None:
        """Let requests finish, and the front door; what is left after a while gets an error."""
        deadline_s = time.monotonic() + self._drain_s

        def is_asked() -> bool:
            return self._calls.num_open > 0 or (front_door is not None and front_door.is_running)

        while is_asked() and self._is_serving and time.monotonic() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        self._calls.end_all(
            RequestCancelledError(
                "the server shut down before the answer was complete: "
                f"it waits {self._drain_s} s for requests in flight",
                "send the request to another server, or again when this one is back",
            )
        )

    async def _pause(self, seconds: float) -> None:
        """Sleep, but wake up when the server is to stop or Triton has ended."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((stopping, self._process.ended), timeout=seconds, return_when="FIRST_COMPLETED")
        stopping.cancel()
