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
    ProcessEndedError,
    RepositoryError,
    RequestCancelledError,
    ServerStartError,
    ServerUnavailableError,
)
from pipelines.triton.supervision import supervisor as supervising
from tests.unit.gateway.running_gateway import until
from tests.unit.gateway.supervised_triton import ENSEMBLE, Process, opened, served, supervised

__all__ = ["supervised"]


def test_ready_are_the_models_of_the_start(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):
            assert not await supervisor.is_ready()
            with pytest.raises(ServerUnavailableError, match="the server is starting"):
                supervisor.check_open("generate")
            await served(supervisor)
            assert await supervisor.is_ready()
            world.ready.add("trial")
            assert await supervisor.is_ready() and await supervisor.is_model_ready("trial")
            world.ready = {"generate", "trial"}
            assert not await supervisor.is_ready(), "a model of the start is missing"
            assert not await supervisor.is_model_ready("speculative")
            world.ready = {"generate", "speculative"}
            assert await supervisor.is_ready()
            world.stopping.set()
            assert not await supervisor.is_ready()
            with pytest.raises(ServerUnavailableError, match="the server is shutting down"):
                supervisor.check_open("generate")

    asyncio.run(scenario())


def test_an_ensemble_answers_no_longer_than_its_steps(supervised: Any, tmp_path: Path) -> None:
    """Triton reports it as ready, and would let its clients wait for ever."""
    config = tmp_path / "model_repository" / "ensemble" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.write_text(ENSEMBLE)

    async def scenario() -> None:
        async with supervised(ready={"generate", "speculative", "ensemble"}) as (world, supervisor, calls):
            await served(supervisor)
            assert await supervisor.is_model_ready("ensemble")
            asked = opened(calls, "ensemble")
            world.models["speculative"].is_alive = False
            assert not await supervisor.is_model_ready("ensemble")
            with pytest.raises(ServerUnavailableError, match="the model is being replaced"):
                while True:
                    supervisor.check_open("ensemble")
                    await asyncio.sleep(0)
            await until(lambda: supervisor.num_replaced == {"speculative": 1})
            with pytest.raises(ProcessEndedError, match="model speculative"):
                await asked
            assert world.controlled == ["unload speculative", "load speculative"]
            assert await supervisor.is_model_ready("ensemble")
            supervisor.check_open("ensemble")

    asyncio.run(scenario())


def test_a_model_whose_process_ended_is_replaced_and_its_requests_end(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, calls):
            await served(supervisor)
            asked, other = opened(calls, "speculative"), opened(calls, "generate")
            await until(lambda: calls.num_open == 2)
            world.models["speculative"].is_alive = False
            assert supervisor.unanswering == {"speculative"}, "seen without a look"
            assert not await supervisor.is_ready() and not await supervisor.is_model_ready("speculative")
            await until(lambda: supervisor.num_replaced == {"speculative": 1})
            assert world.controlled == ["unload speculative", "load speculative"]
            with pytest.raises(ProcessEndedError, match="speculative"):
                await asked
            assert not other.done()
            await until(lambda: supervisor.unanswering == set())
            assert await supervisor.is_ready()
            assert (calls.num_open, len(world.started), supervisor.num_restarts) == (1, 1, 0)

    asyncio.run(scenario())


def test_a_silent_triton_keeps_nobody_from_looking_at_its_models(
    supervised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its ping was awaited, the time counted as silence of the models: one was killed in a burst."""
    monkeypatch.setattr(supervising, "_SEARCH_INTERVAL_S", 0.01)

    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):
            await served(supervisor)
            world.started[-1].is_silent = True
            await asyncio.sleep(0.2)
            world.models["speculative"].is_alive = False
            await until(lambda: supervisor.num_replaced == {"speculative": 1})

    asyncio.run(scenario())


def test_a_model_that_hangs_is_killed_and_replaced(supervised: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.triton.supervision.heartbeat.INTERVAL_S", 0.0)
    monkeypatch.setattr("pipelines.triton.supervision.heartbeat.SILENT_AFTER_S", 0.1)
    monkeypatch.setattr("pipelines.triton.supervision.heartbeat.HANGS_AFTER_S", 0.3)

    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):
            await served(supervisor)
            hanging = world.models["speculative"]

            async def responses(message: Any) -> AsyncIterator[Any]:
                if message.model_name == "speculative" and world.models["speculative"] is hanging:
                    await asyncio.sleep(60)
                yield service_pb2.ModelStreamInferResponse()

            monkeypatch.setattr(world, "responses", responses)
            await until(lambda: "speculative" in supervisor.unanswering)
            assert hanging.is_alive and not await supervisor.is_ready(), "not asked before it is killed"
            await until(lambda: supervisor.num_replaced == {"speculative": 1})
            assert not hanging.is_alive

    asyncio.run(scenario())


def test_a_model_whose_process_is_paused_does_not_answer(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):
            await served(supervisor)
            world.models["speculative"].is_stopped = True
            assert supervisor.unanswering == {"speculative"} and not await supervisor.is_ready()
            world.models["speculative"].is_stopped = False
            assert await supervisor.is_ready() and world.controlled == []

    asyncio.run(scenario())


def test_a_triton_that_is_silent_for_long_is_started_anew(
    supervised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_SEARCH_INTERVAL_S", 0.05)
    monkeypatch.setattr("pipelines.triton.supervision.heartbeat.TRITON_HANGS_AFTER_S", 1.0)

    async def scenario() -> None:
        async with supervised(ready=set()) as (world, supervisor, _):
            await asyncio.sleep(1.5)  # it loads for longer than that
            await until(lambda: bool(world.started))
            world.started[0].is_silent = True
            world.ready = {"generate", "speculative"}
            await served(supervisor)
            await asyncio.sleep(0.3)
            assert not world.started[0].has_ended, "one question without an answer is no hang"
            await until(lambda: len(world.started) == 2)
            await served(supervisor)
            assert supervisor.num_restarts == 1

    asyncio.run(scenario())


def test_a_model_that_cannot_be_replaced_means_another_triton(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised(refusal=RepositoryError("it cannot be loaded")) as (world, supervisor, _):
            await served(supervisor)
            world.models["speculative"].is_alive = False
            await until(lambda: len(world.started) == 2)
            await served(supervisor)
            assert (supervisor.num_restarts, supervisor.num_replaced) == (1, {})

    asyncio.run(scenario())


def test_a_replacement_that_fails_because_triton_ended_leaves_the_next_triton_alone(
    supervised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed may take Triton with it; the server ended instead of starting another one."""

    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):

            async def within(timeout_s: float, reload: Coroutine[Any, Any, None]) -> None:
                """End with an error of its own, although it is cancelled."""
                reload.close()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
                await until(lambda: len(world.started) == 2)
                raise ServerUnavailableError("Triton does not answer")

            monkeypatch.setattr(supervising, "within", within)
            await served(supervisor)
            world.models["speculative"].is_alive = False
            await until(lambda: bool(supervisor._replacing))
            await asyncio.sleep(0.1)
            world.started[0].end(-6)
            await until(lambda: len(world.started) == 2)
            await asyncio.sleep(0.1)
            assert not world.started[1].has_ended
            await served(supervisor)
            assert await supervisor.is_ready()

    asyncio.run(scenario())


def test_a_model_that_was_unloaded_is_not_brought_back(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):
            await served(supervisor)
            world.ready.discard("speculative")
            world.models.pop("speculative").is_alive = False
            await until(lambda: "speculative" not in supervisor.models)
            assert world.controlled == []
            await supervisor.control("generate", "unload")
            assert world.controlled == ["unload generate"]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_held", [True, False])
def test_a_model_that_cannot_be_unloaded_because_its_process_was_killed_means_another_triton(
    supervised: Any, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    monkeypatch.setattr(supervising, "UNLOADS_WITHIN_S", 0.05)

    async def scenario() -> None:
        async with supervised(holds={"speculative"} if is_held else set()) as (world, supervisor, _):
            await served(supervisor)
            process = world.models.pop("speculative")
            world.ready.discard("speculative")
            await supervisor.control("speculative", "unload")
            await asyncio.sleep(0.2)  # Triton waits for requests in flight
            assert len(world.started) == 1
            process.is_alive = False
            if is_held:
                await until(lambda: len(world.started) == 2)
            else:
                await until(lambda: all(task.done() for task in supervisor._unloading.values()))
            assert len(world.started) == 1 + is_held

    asyncio.run(scenario())


def test_a_triton_that_ends_is_started_anew_and_its_requests_end(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, calls):
            await served(supervisor)
            asked = [opened(calls, model) for model in ("generate", "speculative")]
            await until(lambda: calls.num_open == 2)
            world.started[0].end(-9)
            await until(lambda: len(world.started) == 2)
            for each in asked:
                with pytest.raises(ServerUnavailableError, match="-9"):
                    await each
            await served(supervisor)
            assert supervisor.num_restarts == 1

    asyncio.run(scenario())


def test_one_that_ends_again_and_again_is_given_up(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, _):
            for number in range(6):
                await until(lambda number=number: len(world.started) == number + 1)
                await served(supervisor)
                world.started[-1].end(1)

    with pytest.raises(ServerStartError, match="keeps crashing"):
        asyncio.run(scenario())


@pytest.mark.parametrize(("starts", "num_started"), [(["race"] * 2, 3), (["race"] * 3, 3), (["broken"], 1)])
def test_a_start_is_tried_again_for_its_race_alone(
    supervised: Any, starts: list[str], num_started: int
) -> None:
    async def scenario() -> list[Process]:
        async with supervised(fails_to_start=list(starts)) as (world, supervisor, _):
            await until(lambda: len(world.started) == num_started)
            if len(starts) < num_started:
                await served(supervisor)
            else:
                await asyncio.sleep(0.2)
            return list(world.started)

    if len(starts) < num_started:
        assert len(asyncio.run(scenario())) == num_started
    else:
        with pytest.raises(ServerStartError, match="Triton ended before it was ready"):
            asyncio.run(scenario())


def test_open_requests_get_an_error_at_the_end(supervised: Any) -> None:
    async def scenario() -> None:
        async with supervised() as (world, supervisor, calls):
            await served(supervisor)
            asked = opened(calls, "generate")
            await until(lambda: calls.num_open == 1)
            world.stopping.set()
            with pytest.raises(RequestCancelledError, match="1 requests were open"):
                await asked
            await until(lambda: world.started[0].has_ended)

    asyncio.run(scenario())


@pytest.mark.parametrize("drains", [True, False])
def test_triton_is_stopped_after_the_front_door_or_when_the_time_is_over(
    supervised: Any, drains: bool
) -> None:
    """It asks the models' sockets, so the gateway has no open request of it."""

    async def scenario() -> None:
        front_door = SimpleNamespace(is_running=True)
        async with supervised(drain_s=60 if drains else 0, front_door=front_door) as (world, supervisor, _):
            await served(supervisor)
            world.stopping.set()
            await asyncio.sleep(0.2)
            assert world.started[0].has_ended is not drains
            front_door.is_running = False
            await until(lambda: world.started[0].has_ended)

    asyncio.run(scenario())
