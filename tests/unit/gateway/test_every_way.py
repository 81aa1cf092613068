"""Tests of what holds for every way to ask the gateway: both protocols, streamed or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest
from aiohttp import ClientSession
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.deploy.ports import HOST, Ports
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    ProcessEndedError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from pipelines.triton.gateway.grpc_server import GrpcServer
from pipelines.triton.gateway.http_server import HttpServer
from pipelines.triton.gateway.serving import listen
from pipelines.triton.gateway.triton import KEY_HEADER
from tests.unit.gateway.stand_in_triton import Behind, behind_the_gateway, until


class Way:
    """One way to ask, against a gateway that serves both protocols.

    Args:
        channel: Connection to its gRPC port.
        session: Connection to its HTTP port.
        name: A gRPC method or an action of HTTP.
    """

    def __init__(self, channel: Any, session: ClientSession, name: str) -> None:
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._session = session
        self._name = name

    async def ask(self, text: str = "hello", *, model: str = "generate", key: str = "") -> tuple[str, str]:
        """Return the model's name and the text of the first response.

        Raises:
            DraftproofError: The last response is this error.
        """
        if self._name.startswith("Model"):
            return await self._ask_grpc(text, model, ((KEY_HEADER, key),) if key else None)
        return await self._ask_http(text, model, {KEY_HEADER: key} if key else {})

    async def _ask_grpc(self, text: str, model: str, metadata: Any) -> tuple[str, str]:
        message = service_pb2.ModelInferRequest(model_name=model, id="mine")
        data = text.encode()
        for name, datatype, raw in (
            ("text_input", "BYTES", len(data).to_bytes(4, "little") + data),
            ("max_tokens", "INT32", np.int32(1).tobytes()),
        ):
            message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
            message.raw_input_contents.append(raw)
        if self._name == "ModelInfer":
            try:
                responses = [await self._stub.ModelInfer(message, metadata=metadata)]
            except grpc.aio.AioRpcError as failed:
                raise_ours(failed.details())
        else:
            responses = []
            async for each in self._stub.ModelStreamInfer(iter([message]), metadata=metadata):
                if each.error_message:
                    assert each.infer_response.id == "mine"
                    raise_ours(each.error_message)
                responses.append(each.infer_response)
        return responses[0].model_name, responses[0].raw_output_contents[0][4:].decode()

    async def _ask_http(self, text: str, model: str, headers: dict[str, str]) -> tuple[str, str]:
        body: Any = {"text_input": text, "max_tokens": 1}
        if self._name == "infer":
            given = {"text_input": ("BYTES", [text]), "max_tokens": ("INT32", [1])}
            body = {
                "inputs": [
                    {"name": name, "datatype": datatype, "shape": [1, 1], "data": data}
                    for name, (datatype, data) in given.items()
                ]
            }
        path = f"/v2/models/{model}/{self._name}"
        async with self._session.post(path, json=body, headers=headers) as reply:
            events = (await reply.text()).split("\n\n")
        documents = [json.loads(each.removeprefix("data: ")) for each in events if each]
        if error := documents[-1].get("error"):
            raise_ours(error)
        if self._name == "infer":
            return documents[0]["model_name"], documents[0]["outputs"][0]["data"][0]
        return documents[0]["model_name"], documents[0]["text_output"]


def raise_ours(text: str) -> NoReturn:
    """Raise our error that a client received, which shows nothing of the server's inside."""
    error = from_wire(text)
    assert error is not None and "Traceback" not in text, text
    raise error


WAYS = ("ModelInfer", "ModelStreamInfer", "generate", "generate_stream", "infer")
every_way = pytest.mark.parametrize("way", WAYS)


def run(directory: Path, way: str, scenario: Callable[[Way, Behind], Awaitable[None]]) -> None:
    """Run a scenario against a gateway in front of a stand-in for Triton."""

    async def all_of_it() -> None:
        async with behind_the_gateway(directory) as behind, AsyncExitStack() as running:
            supervisor: Any = behind.health
            ports = Ports.free()
            server = await GrpcServer(behind.triton, supervisor, behind.relay).start(f"{HOST}:{ports.grpc}")
            running.push_async_callback(server.stop, 0)
            application = HttpServer(behind.triton, supervisor, behind.relay).application()
            await listen(running, application, HOST, ports.http)
            channel = await running.enter_async_context(grpc.aio.insecure_channel(f"{HOST}:{ports.grpc}"))
            session = await running.enter_async_context(ClientSession(f"http://{HOST}:{ports.http}"))
            await asyncio.wait_for(scenario(Way(channel, session, way), behind), 60)
            await behind.all_ended()

    asyncio.run(all_of_it())


@every_way
@pytest.mark.parametrize(
    ("asked", "model", "arm"),
    [
        ("generate", "router", "stable"),
        ("generate_target", "router", "control"),
        ("router", "router", ""),
        ("target", "speculative", "control"),
        ("speculative", "speculative", ""),
    ],
)
def test_a_name_is_turned_into_a_model_and_an_arm(
    tmp_path: Path, way: str, asked: str, model: str, arm: str
) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        assert await client.ask(model=asked, key=behind.key) == (asked, "hello 0")
        [sent] = behind.stand_in.requests
        assert (sent.model_name, sent.parameters["draftproof_arm"].string_param) == (model, arm)
        assert sent.parameters["draftproof_key"].string_param == behind.key

    run(tmp_path, way, scenario)


@every_way
def test_a_model_of_the_repository_comes_before_an_alias(tmp_path: Path, way: str) -> None:
    config = tmp_path / "model_repository" / "target" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.touch()

    async def scenario(client: Way, behind: Behind) -> None:
        await client.ask(model="target", key=behind.key)
        [sent] = behind.stand_in.requests
        assert sent.model_name == "target" and "draftproof_arm" not in sent.parameters

    run(tmp_path, way, scenario)


@every_way
def test_internal_models_are_open_to_operators_alone(tmp_path: Path, way: str) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        for key in ("", "guess", behind.key[:-1]):
            with pytest.raises(InvalidRequestError, match="clients cannot use this model") as refused:
                await client.ask(model="speculative", key=key)
            assert behind.key not in str(refused.value)
        assert behind.stand_in.requests == []

    run(tmp_path, way, scenario)


@every_way
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("draftproof/engine_failed: broken", EngineFailedError),
        ("draftproof/process_ended: broken", ProcessEndedError),
        ("draftproof/server_busy: full", ServerBusyError),
        ("draftproof/request_timeout: late", RequestTimeoutError),
        ("an error of Triton's own", InvalidRequestError),
        ("Stub process 'router_0_0' is not healthy. error", EngineFailedError),
        ("break", ServerUnavailableError),
    ],
)
def test_an_error_of_triton_reaches_the_client(
    tmp_path: Path, way: str, text: str, kind: type[DraftproofError]
) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        with pytest.raises(kind) as failed:
            await client.ask(text)
        assert type(failed.value) is kind

    run(tmp_path, way, scenario)


@every_way
def test_what_the_supervisor_refuses_does_not_reach_triton(tmp_path: Path, way: str) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        behind.health.refusal = ServerUnavailableError("the model is being replaced")
        with pytest.raises(ServerUnavailableError, match="being replaced"):
            await client.ask()
        assert behind.stand_in.requests == []

    run(tmp_path, way, scenario)


@every_way
def test_the_end_of_a_models_process_ends_its_answers(tmp_path: Path, way: str) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        asked = asyncio.create_task(client.ask("hang"))
        await until(lambda: bool(behind.stand_in.requests))
        behind.end("router", ProcessEndedError("the model's process ended", values="it was killed"))
        with pytest.raises(ProcessEndedError, match="it was killed"):
            await asked
        await behind.stand_in.cancelled.wait()

    run(tmp_path, way, scenario)


@every_way
def test_a_client_that_leaves_ends_its_request(tmp_path: Path, way: str) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        asked = asyncio.create_task(client.ask("hang"))
        await until(lambda: bool(behind.stand_in.requests))
        assert behind.calls.num_open == 1
        asked.cancel()
        await behind.stand_in.cancelled.wait()

    run(tmp_path, way, scenario)


@every_way
def test_one_request_more_than_the_limit_is_refused_at_once(tmp_path: Path, way: str) -> None:
    async def scenario(client: Way, behind: Behind) -> None:
        asked = [asyncio.create_task(client.ask("hang")) for _ in range(4)]
        await until(lambda: len(behind.stand_in.requests) == 4)
        with pytest.raises(ServerBusyError):
            await client.ask()
        assert behind.calls.num_refused == 1
        for each in asked:
            each.cancel()
        await behind.all_ended()
        assert await client.ask() == ("generate", "hello 0")

    run(tmp_path, way, scenario)


@every_way
def test_the_call_of_a_failed_request_is_read_to_its_end(tmp_path: Path, way: str) -> None:
    """Triton may never release a call that is cancelled while it ends."""

    async def scenario(client: Way, behind: Behind) -> None:
        with pytest.raises(InvalidRequestError, match="slow error"):
            await client.ask("slow error")
        await behind.all_ended()
        await asyncio.sleep(0.1)  # a cancellation would arrive meanwhile
        assert not behind.stand_in.cancelled.is_set()

    run(tmp_path, way, scenario)
