"""Tests of the supervisor: Triton or a model's process starts, ends or hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from pipelines.errors import (
    DraftproofError,
    ProcessEndedError,
    RepositoryError,
    RequestCancelledError,
    ServerStartError,
    ServerUnavailableError,
)
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.supervision import heartbeat
from pipelines.triton.supervision import supervisor as supervising
from pipelines.triton.supervision.supervisor import Supervisor
from tests.unit.gateway.running_gateway import until

BOTH = frozenset({"generate", "speculative"})
ALL = BOTH | {"ensemble"}
ENSEMBLE = 'platform: "ensemble"\nstep [{\n  model_name: "speculative"\n}]\n'


class Process:
    """A process of Triton."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_silent = False
        self.met_its_race = False
        self.gives_up: list[str] = []

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def end(self, exit_code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(exit_code)

    def find_models(self) -> dict[str, ModelProcess]:
        return dict(self._world.models)

    def given_up(self) -> list[str]:
        found, self.gives_up = self.gives_up, []
        return found

    def kill(self) -> None:
        self.end(-9)

    async def clear(self) -> None:
        self.kill()

    async def stop(self, patience_s: float) -> None:
        self.end(0)


class ModelProcess:
    def __init__(self) -> None:
        self.is_alive = True
        self.is_stopped = False

    def kill(self) -> None:
        self.is_alive = False


class World:
    """Triton, its process and its models' processes, as a test wants them, and their supervisor.

    ``fails_to_start`` is what the next starts print before they end.
    """

    server_key = "key"
    supervisor: Supervisor
    running: asyncio.Task[None]

    def __init__(self, ready: frozenset[str] = ALL, fails_to_start: tuple[str, ...] = ()) -> None:
        self.ready = set(ready)
        self.models = {name: ModelProcess() for name in BOTH}
        self.started: list[Process] = []
        self.controlled: list[str] = []
        self.refusals: list[DraftproofError] = []
        self.fails_to_start = list(fails_to_start)
        self.stopping, self.reloading = asyncio.Event(), asyncio.Event()
        self.calls = OpenCalls()

    async def ready_models(self) -> set[str]:
        return self.ready if self.started and not self.started[-1].has_ended else set()

    async def is_ready(self, model: str) -> bool:
        return model in self.ready

    async def is_live(self) -> bool:
        process = self.started[-1]
        while process.is_silent and not process.has_ended:
            await asyncio.sleep(0.01)
        return not process.has_ended

    async def control(self, model: str, action: str) -> None:
        self.controlled.append(f"{action} {model}")
        if action == "load":
            if self.refusals:
                raise self.refusals.pop()
            self.models[model] = ModelProcess()

    async def ask(self, method: str, name: str) -> Any:
        reply = service_pb2.ModelConfigResponse()
        reply.config.name = name
        return reply

    async def responses(self, message: Any) -> AsyncIterator[Any]:
        """Answer a ping."""
        yield service_pb2.ModelStreamInferResponse()

    def start(self) -> Process:
        self.started.append(Process(self))
        self.models = {model: ModelProcess() for model in self.models}
        if self.fails_to_start:
            self.started[-1].met_its_race = self.fails_to_start.pop(0) == "race"
            self.started[-1].end(1)
        return self.started[-1]

    def opened(self, model: str) -> asyncio.Task[None]:
        """Return an open request that ends with its model."""
        asked = asyncio.create_task(self.calls.run(model, asyncio.sleep(60)))
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio complains
        return asked

    async def served(self) -> None:
        """Wait until requests are let in."""
        while True:
            with contextlib.suppress(ServerUnavailableError):
                return await self.supervisor.opened("generate")
            await asyncio.sleep(0.01)

    async def replaced(self) -> None:
        """Wait until the process of ``speculative`` was replaced."""
        await until(lambda: self.supervisor.num_replaced == {"speculative": 1})


@contextlib.asynccontextmanager
async def supervised(
    directory: Path, monkeypatch: pytest.MonkeyPatch, drain_s: int = 0, front_door: Any = None, **world: Any
) -> AsyncIterator[World]:
    repository = directory / "model_repository"
    configs = {"generate": "", "speculative": "", "ensemble": ENSEMBLE}
    for name, config in configs.items():
        (repository / name).mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    made = World(**world)
    monkeypatch.setattr(supervising, "LOOK_INTERVAL_S", 0.01)
    triton: Any = made
    start: Any = made.start
    made.supervisor = Supervisor(
        *(repository, drain_s, triton, made.calls, start(), start, made.stopping, made.reloading)
    )
    made.running = asyncio.create_task(made.supervisor.run(front_door))
    try:
        yield made
    finally:
        made.stopping.set()
        await asyncio.wait_for(made.running, 10)


@pytest.fixture
@contextlib.asynccontextmanager
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with supervised(tmp_path, monkeypatch) as world:
        await world.served()
        yield world


async def test_ready_are_the_models_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with supervised(tmp_path, monkeypatch) as world:
        supervisor = world.supervisor
        assert not await supervisor.is_ready()
        with pytest.raises(ServerUnavailableError, match="the server is starting"):
            await supervisor.opened("generate")
        await world.served()
        assert await supervisor.is_ready()
        world.ready = {"generate"}
        assert not await supervisor.is_ready(), "a model of the start is missing"
        assert not await supervisor.is_model_ready("speculative")
        world.ready = set(ALL)
        assert await supervisor.is_ready()
        world.stopping.set()
        assert not await supervisor.is_ready()
        with pytest.raises(ServerUnavailableError, match="the server is shutting down"):
            await supervisor.opened("generate")


async def test_an_ensemble_answers_no_longer_than_its_steps(world: World) -> None:
    """Triton reports it as ready, and would let its clients wait for ever."""
    supervisor = world.supervisor
    assert await supervisor.is_model_ready("ensemble")
    asked = world.opened("ensemble")
    world.models["speculative"].is_alive = False
    assert not await supervisor.is_model_ready("ensemble")
    with pytest.raises(ServerUnavailableError, match="the model is being replaced"):
        while True:
            await supervisor.opened("ensemble")
            await asyncio.sleep(0)
    await world.replaced()
    with pytest.raises(ProcessEndedError, match="speculative"):
        await asked
    assert world.controlled == ["unload speculative", "load speculative"]
    assert await supervisor.is_model_ready("ensemble")
    await supervisor.opened("ensemble")


async def test_a_model_whose_process_ended_is_replaced_and_its_requests_end(world: World) -> None:
    asked, other = world.opened("speculative"), world.opened("generate")
    await until(lambda: world.calls.num_open == 2)
    world.models["speculative"].is_alive = False
    assert world.supervisor.unanswering == {"speculative"}, "seen without a look"
    assert not await world.supervisor.is_ready()
    await world.replaced()
    assert world.controlled == ["unload speculative", "load speculative"]
    with pytest.raises(ProcessEndedError, match="speculative"):
        await asked
    assert not other.done()
    await until(lambda: world.supervisor.unanswering == set())
    assert await world.supervisor.is_ready()
    assert (world.calls.num_open, len(world.started), world.supervisor.num_restarts) == (1, 1, 0)


async def test_a_silent_triton_keeps_nobody_from_looking_at_its_models(
    world: World, monkeypatch: Any
) -> None:
    """While its ping was awaited, the time counted as silence of the models: one was killed in a burst."""
    monkeypatch.setattr(supervising, "_SEARCH_INTERVAL_S", 0.01)
    world.started[-1].is_silent = True
    await asyncio.sleep(0.2)
    world.models["speculative"].is_alive = False
    await world.replaced()


async def test_a_model_that_hangs_is_killed_and_replaced(world: World, monkeypatch: Any) -> None:
    for name, seconds in (("INTERVAL_S", 0.0), ("SILENT_AFTER_S", 0.1), ("HANGS_AFTER_S", 0.3)):
        monkeypatch.setattr(heartbeat, name, seconds)
    hanging = world.models["speculative"]

    async def responses(message: Any) -> AsyncIterator[Any]:
        if message.model_name == "speculative" and world.models["speculative"] is hanging:
            await asyncio.sleep(60)
        yield service_pb2.ModelStreamInferResponse()

    monkeypatch.setattr(world, "responses", responses)
    await until(lambda: "speculative" in world.supervisor.unanswering)
    assert hanging.is_alive and not await world.supervisor.is_ready(), "not asked before it is killed"
    await world.replaced()
    assert not hanging.is_alive


async def test_a_model_whose_process_is_paused_does_not_answer(world: World) -> None:
    world.models["speculative"].is_stopped = True
    assert world.supervisor.unanswering == {"speculative"} and not await world.supervisor.is_ready()
    world.models["speculative"].is_stopped = False
    assert await world.supervisor.is_ready() and world.controlled == []


async def test_a_triton_that_is_silent_for_long_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_SEARCH_INTERVAL_S", 0.05)
    monkeypatch.setattr(heartbeat, "TRITON_HANGS_AFTER_S", 1.0)
    async with supervised(tmp_path, monkeypatch, ready=frozenset()) as world:
        await asyncio.sleep(1.5)  # it loads for longer than that
        world.started[0].is_silent = True
        world.ready = set(ALL)
        await world.served()
        await asyncio.sleep(0.3)
        assert not world.started[0].has_ended, "one question without an answer is no hang"
        await until(lambda: len(world.started) == 2)
        await world.served()
        assert world.supervisor.num_restarts == 1


async def test_a_load_that_fails_is_tried_again_before_triton_is_restarted(world: World) -> None:
    """A request that waits for the engine may end it before Triton knows that it has loaded."""
    world.refusals = [RepositoryError("its process is not healthy")] * 2
    world.models["speculative"].is_alive = False
    await world.replaced()
    assert world.controlled == ["unload speculative", *["load speculative"] * 3]
    assert len(world.started) == 1 and await world.supervisor.is_ready()


async def test_a_model_that_cannot_be_replaced_means_another_triton(world: World) -> None:
    world.refusals = [RepositoryError("it cannot be loaded")] * 3
    world.models["speculative"].is_alive = False
    await until(lambda: len(world.started) == 2)
    await world.served()
    assert (world.supervisor.num_restarts, world.supervisor.num_replaced) == (1, {})


async def test_a_replacement_that_fails_because_triton_ended_leaves_the_next_triton_alone(
    world: World, monkeypatch: Any
) -> None:
    """A process that is killed may take Triton with it; the server ended instead of starting another one."""

    async def within(timeout_s: float, reload: Coroutine[Any, Any, None]) -> None:
        """End with an error of its own, although it is cancelled."""
        reload.close()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await until(lambda: len(world.started) == 2)
        raise ServerUnavailableError("Triton does not answer")

    monkeypatch.setattr(supervising, "within", within)
    world.models["speculative"].is_alive = False
    await until(lambda: bool(world.supervisor._replacing))
    await asyncio.sleep(0.1)
    world.started[0].end(-6)
    await until(lambda: len(world.started) == 2)
    await asyncio.sleep(0.1)
    assert not world.started[1].has_ended
    await world.served()
    assert await world.supervisor.is_ready()


async def test_a_model_that_was_unloaded_is_not_brought_back(world: World) -> None:
    world.ready.discard("speculative")
    world.models.pop("speculative").is_alive = False
    await until(lambda: "speculative" not in world.supervisor.models)
    assert world.controlled == []


async def test_another_pair_is_loaded_while_requests_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in work end first, a pair that cannot be loaded is tried again, and it is no crash."""
    monkeypatch.setattr(supervising, "_RELOAD_PAUSE_S", 0.01)
    async with supervised(tmp_path, monkeypatch, drain_s=5) as world:
        await world.served()
        in_work = asyncio.Event()
        asked = asyncio.create_task(world.calls.run("generate", _wait(in_work)))
        await until(lambda: world.calls.num_open == 1)
        world.fails_to_start = ["a model cannot be loaded"]
        world.reloading.set()
        await until(lambda: not world.reloading.is_set())
        waiting = asyncio.create_task(world.supervisor.opened("generate"))
        await asyncio.sleep(0.1)
        assert (len(world.started), waiting.done()) == (1, False)
        in_work.set()
        await asyncio.gather(asked, waiting)
        assert len(world.started) == 3 and world.started[0].has_ended
        assert await world.supervisor.is_ready() and world.supervisor.num_restarts == 0


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_triton_that_ends_is_started_anew_and_its_requests_end(world: World) -> None:
    asked = [world.opened(model) for model in BOTH]
    await until(lambda: world.calls.num_open == 2)
    world.started[0].end(-9)
    await until(lambda: len(world.started) == 2)
    for each in asked:
        with pytest.raises(ServerUnavailableError, match="-9"):
            await each
    await world.served()
    assert world.supervisor.num_restarts == 1


async def test_one_that_always_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerStartError, match="keeps crashing"):
        async with supervised(tmp_path, monkeypatch) as world:
            for number in range(6):
                await until(lambda number=number: len(world.started) == number + 1)  # type: ignore[misc]
                await world.served()
                world.started[-1].end(1)
            await until(world.running.done)


@pytest.mark.parametrize(
    ("starts", "num_started", "is_served"),
    [(["race"] * 2, 3, True), (["race"] * 3, 3, False), (["broken"], 1, False)],
)
async def test_a_start_is_tried_again_for_its_race_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[str], num_started: int, is_served: bool
) -> None:
    refused = pytest.raises(ServerStartError, match="Triton ended before it was ready")
    with contextlib.nullcontext() if is_served else refused:
        async with supervised(tmp_path, monkeypatch, fails_to_start=starts) as world:
            await until(lambda: len(world.started) == num_started)
            await (world.served() if is_served else asyncio.sleep(0.2))
            assert len(world.started) == num_started


async def test_a_restart_that_fails_is_tried_again(world: World) -> None:
    """A request that waits for the server may end an engine before it is ready."""
    world.fails_to_start = ["broken"] * 2
    world.started[0].end(-9)
    await until(lambda: len(world.started) == 4)
    await world.served()


@pytest.mark.parametrize("is_served", [False, True])
async def test_the_process_of_a_model_that_triton_gave_up_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    """Triton waits for its end, at a start or when the model is loaded later, and says nothing."""
    async with supervised(tmp_path, monkeypatch, ready=ALL if is_served else frozenset()) as world:
        if is_served:
            await world.served()
        process = world.models["speculative"]
        world.started[0].gives_up = ["generate", "speculative"]
        await until(lambda: not process.is_alive)
        world.started[0].met_its_race = True
        world.started[0].end(1)
        await until(lambda: len(world.started) == 2)
        world.ready = set(ALL)
        await world.served()


async def test_open_requests_get_an_error_at_the_end(world: World) -> None:
    asked = world.opened("generate")
    await until(lambda: world.calls.num_open == 1)
    world.stopping.set()
    with pytest.raises(RequestCancelledError, match="it waits 0 s"):
        await asked
    await until(lambda: world.started[0].has_ended)


@pytest.mark.parametrize("drains", [True, False])
async def test_triton_is_stopped_after_the_front_door_or_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    """It asks the models' sockets, so the gateway has no open request of it."""
    front_door = SimpleNamespace(is_running=True)
    async with supervised(tmp_path, monkeypatch, 60 if drains else 0, front_door) as world:
        await world.served()
        world.stopping.set()
        await asyncio.sleep(0.2)
        assert world.started[0].has_ended is not drains
        front_door.is_running = False
        await until(lambda: world.started[0].has_ended)
