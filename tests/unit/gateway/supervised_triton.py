"""A supervisor with a stand-in for Triton and its processes, which end or hang when a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from pipelines.deploy.ports import Endpoint, Ports
from pipelines.deploy.triton.models import PAIR_FILE
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import (
    DraftproofError,
    ServerUnavailableError,
)
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.supervision import supervisor as supervising
from pipelines.triton.supervision.supervisor import Supervisor
from tests.unit.gateway.running_gateway import until


class World:
    """Triton, its process, and its models' processes, as a test wants them.

    Attributes:
        ready: Models that Triton reports as ready.
        models: Maps each model to its process.
        started: Every process of Triton that was started.
        controlled: Models that were loaded and unloaded.
        holds: Models that Triton never finishes to unload.
        refusal: The error of loading.
        fails_to_start: What the next starts print before they end.
        stopping: Ends the supervisor.
    """

    server_key = "key"

    def __init__(self) -> None:
        self.ready = {"generate", "speculative"}
        self.models = {"generate": ModelProcess("generate"), "speculative": ModelProcess("speculative")}
        self.started: list[Process] = []
        self.controlled: list[str] = []
        self.holds: set[str] = set()
        self.refusal: DraftproofError | None = None
        self.fails_to_start: list[str] = []
        self.stopping = asyncio.Event()

    async def ready_models(self) -> set[str]:
        return self.ready if self.started and not self.started[-1].has_ended else set()

    async def is_ready(self, model: str) -> bool:
        return model in self.ready

    async def index(self) -> list[dict[str, str]]:
        states = dict.fromkeys(self.ready, "READY") | dict.fromkeys(self.holds, "UNLOADING")
        return [{"name": name, "state": state} for name, state in states.items()]

    async def is_live(self) -> bool:
        process = self.started[-1]
        while process.is_silent and not process.has_ended:
            await asyncio.sleep(0.01)
        return not process.has_ended

    async def control(self, model: str, action: str) -> None:
        self.controlled.append(f"{action} {model}")
        if self.refusal is not None:
            raise self.refusal
        if action == "load":
            self.models[model] = ModelProcess(model)

    async def ask(self, method: str, name: str) -> Any:
        reply = service_pb2.ModelConfigResponse()
        reply.config.name = name
        return reply

    async def responses(self, message: Any) -> AsyncIterator[Any]:
        """Answer a ping."""
        yield service_pb2.ModelStreamInferResponse()

    def start(self, command: object, place: object) -> Process:
        self.started.append(Process())
        self.models = {model: ModelProcess(model) for model in self.models}
        if self.fails_to_start:
            self.started[-1].met_its_race = self.fails_to_start.pop(0) == "race"
            self.started[-1].end(1)
        return self.started[-1]


class Process:
    """A process of Triton."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_silent = False
        self.met_its_race = False

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def end(self, exit_code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(exit_code)

    def kill(self) -> None:
        self.end(-9)

    async def clear(self) -> None:
        self.kill()

    async def stop(self, patience_s: float) -> bool:
        self.end(0)
        return True


class ModelProcess:
    def __init__(self, model: str) -> None:
        self.model = model
        self.is_alive = True
        self.is_stopped = False

    def kill(self) -> None:
        self.is_alive = False


ENSEMBLE = 'platform: "ensemble"\nstep [{\n  model_name: "speculative"\n}]\n'


@pytest.fixture
def supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., contextlib.AbstractAsyncContextManager[tuple[World, Supervisor, OpenCalls]]]:
    """Run a supervisor with everything around it."""
    repository = tmp_path / "model_repository"
    for name, record in (("generate", ""), ("speculative", ""), ("trial", '{"loads_at_start": false}')):
        (repository / name).mkdir(parents=True)
        (repository / name / "config.pbtxt").touch()
        if record:
            (repository / name / PAIR_FILE).write_text(record)
    monkeypatch.setattr(supervising, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(supervising, "triton_command", lambda *arguments: None)

    @contextlib.asynccontextmanager
    async def make(
        drain_s: int = 0, front_door: Any = None, **changes: Any
    ) -> AsyncIterator[tuple[World, Supervisor, OpenCalls]]:
        world, calls = World(), OpenCalls()
        for name, value in changes.items():
            setattr(world, name, value)
        monkeypatch.setattr(supervising, "TritonProcess", world.start)
        monkeypatch.setattr(supervising, "find_model_processes", lambda prefix: list(world.models.values()))
        place, endpoint = (
            TritonPlace.make(tmp_path),
            Endpoint(Ports.free(), exit_timeout_s=0, drain_s=drain_s),
        )
        triton: Any = world
        process: Any = world.start(None, None)
        supervisor = Supervisor(tmp_path, endpoint, place, triton, calls, process, world.stopping)
        running = asyncio.create_task(supervisor.run(front_door))
        try:
            yield world, supervisor, calls
        finally:
            world.stopping.set()
            await asyncio.wait_for(running, 10)

    return make


def opened(calls: OpenCalls, model: str) -> asyncio.Task[None]:
    """Return an open request that ends with its model."""
    return asyncio.create_task(calls.run(model, asyncio.sleep(60)))


async def served(supervisor: Supervisor) -> None:
    def is_open() -> bool:
        with contextlib.suppress(ServerUnavailableError):
            supervisor.check_open("generate")
            return True
        return False

    await until(is_open)
