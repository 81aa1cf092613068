"""Tests of the gateway over gRPC: what clients and operators may do, and how answers end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    ProcessEndedError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from pipelines.triton.gateway.grpc_server import GrpcServer
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES
from pipelines.triton.gateway.triton import KEY_HEADER
from tests.unit.gateway.stand_in_triton import SECRET_PATH, Behind, behind_the_gateway

OPEN = {
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig"),
    *("ModelInfer", "ModelStreamInfer"),
}


IDENTITY = ServerIdentity("demo", "0" * 64, "embedded", "a processor", 2)


def run(directory: Path, scenario: Callable[[Behind, Any], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with behind_the_gateway(directory) as behind:
            methods = GrpcServer(behind.triton, behind.health, behind.relay, IDENTITY)
            server = await methods.start(f"127.0.0.1:{behind.port}")
            try:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{behind.port}") as channel:
                    await asyncio.wait_for(scenario(behind, channel), 60)
            finally:
                await server.stop(0)

    asyncio.run(all_of_it())


def stub(channel: Any) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request(
    text: str = "hello", num_responses: int = 1, request_id: str = "", model: str = "generate"
) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    data = text.encode()
    for name, datatype, raw in (
        ("text_input", "BYTES", len(data).to_bytes(4, "little") + data),
        ("max_tokens", "INT32", np.int32(num_responses).tobytes()),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        message.raw_input_contents.append(raw)
    return message


async def error_of(call: Any) -> tuple[str, DraftproofError | None]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code().name, from_wire(failed.value.details())


async def stream(channel: Any, *requests: Any) -> list[Any]:
    """Return all responses to some requests on one stream."""
    call = stub(channel).ModelStreamInfer(iter(requests))
    return [response async for response in call]


def told(response: Any) -> DraftproofError | None:
    return from_wire(response.error_message)


def test_every_other_method_of_the_service_is_closed(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
        closed = {method.name for method in service.methods} - OPEN
        assert {"RepositoryModelLoad", "LogSettings", "SystemSharedMemoryRegister"} <= closed
        for name in closed:
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            code, _ = await error_of(method(b"", metadata=((KEY_HEADER, behind.key),)))
            assert code == "UNIMPLEMENTED", name

    run(tmp_path, scenario)


@pytest.mark.parametrize("num_responses", [0, 2])
def test_a_call_for_one_response_gets_exactly_one(tmp_path: Path, num_responses: int) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        code, error = await error_of(stub(channel).ModelInfer(request("hello", num_responses)))
        assert code == "INVALID_ARGUMENT" and f"the model sent {num_responses}" in str(error)
        assert behind.calls.num_open == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_raw", [True, False])
def test_a_call_for_one_response_that_asks_for_a_stream_does_not_reach_triton(
    tmp_path: Path, is_raw: bool
) -> None:
    def asking(streams: bool) -> Any:
        message = request()
        message.inputs.add(name="stream", datatype="BOOL", shape=[1, 1])
        message.raw_input_contents.append(bytes([streams]))
        return message

    async def scenario(behind: Behind, channel: Any) -> None:
        streaming = asking(True)
        if not is_raw:
            del streaming.raw_input_contents[:]
            streaming.inputs[0].contents.bytes_contents.append(b"hello")
            streaming.inputs[1].contents.int_contents.append(1)
            streaming.inputs[2].contents.bool_contents.append(True)
        code, error = await error_of(stub(channel).ModelInfer(streaming))
        assert code == "INVALID_ARGUMENT" and "stream is true" in str(error)
        assert behind.stand_in.requests == []
        assert (await stub(channel).ModelInfer(asking(False))).outputs

    run(tmp_path, scenario)


def test_the_servers_metadata_say_on_what_its_answers_depend(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        reply = await stub(channel).ServerMetadata(service_pb2.ServerMetadataRequest())
        assert (reply.name, reply.extensions[0]) == ("triton", "logging")
        assert ServerIdentity.of_extensions(reply.extensions) == IDENTITY

    run(tmp_path, scenario)


def test_requests_of_one_stream_are_answered_by_their_ids(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        reply = await stub(channel).ModelInfer(request("hello", request_id="mine"))
        assert (reply.id, reply.raw_output_contents[0][4:]) == ("mine", b"hello 0")
        assert not reply.parameters, "marks of a stream"
        responses = await stream(channel, request("a", 2, "1"), request("b", 1, "2"))
        found = [
            (each.infer_response.id, bytes(each.infer_response.raw_output_contents[0][4:]))
            for each in responses
            if each.infer_response.outputs
        ]
        assert sorted(found) == [("1", b"a 0"), ("1", b"a 1"), ("2", b"b 0")]
        assert behind.calls.num_open == 0

    run(tmp_path, scenario)


def test_models_are_described_under_the_name_that_was_asked_for(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        api = stub(channel)
        described = await api.ModelMetadata(service_pb2.ModelMetadataRequest(name="generate_target"))
        config = await api.ModelConfig(service_pb2.ModelConfigRequest(name="generate_target"))
        assert described.name == config.config.name == "generate_target"
        assert behind.stand_in.described == ["router"] * 2
        assert (await api.ModelReady(service_pb2.ModelReadyRequest(name="generate_target"))).ready

    run(tmp_path, scenario)


def test_descriptions_show_clients_neither_internal_models_nor_paths(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        api, key = stub(channel), ((KEY_HEADER, behind.key),)
        config, metadata = service_pb2.ModelConfigRequest, service_pb2.ModelMetadataRequest
        for method, internal in ((api.ModelConfig, config), (api.ModelMetadata, metadata)):
            for wrong in (None, ((KEY_HEADER, "guess"),), ((KEY_HEADER, ""),)):
                code, error = await error_of(method(internal(name="speculative"), metadata=wrong))
                assert code == "INVALID_ARGUMENT" and isinstance(error, InvalidRequestError)
            assert (await method(internal(name="speculative"), metadata=key)).SerializeToString()
        reply = await api.ModelConfig(config(name="generate"))
        assert not reply.config.parameters and reply.config.input
        reply = await api.ModelConfig(config(name="generate"), metadata=key)
        assert reply.config.parameters["target_engine_dir"].string_value == SECRET_PATH

    run(tmp_path, scenario)


def test_what_is_refused_on_a_stream_leaves_the_other_requests_alone(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        classified = request("x", request_id="bad")
        classified.outputs.add(name="text_output").parameters["classification"].int64_param = 3
        responses = await stream(channel, classified, request("good", 1, "good"))
        [refused] = [each for each in responses if each.error_message]
        assert refused.infer_response.id == "bad" and isinstance(told(refused), InvalidRequestError)
        assert [each.id for each in behind.stand_in.requests] == ["good"]
        code, error = await error_of(stub(channel).ModelInfer(classified))
        assert code == "INVALID_ARGUMENT" and isinstance(error, InvalidRequestError)

    run(tmp_path, scenario)


def test_bytes_that_are_no_message_are_refused(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        for name in ("ModelInfer", "ModelReady", "ModelConfig", "ModelMetadata"):
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            code, _ = await error_of(method(b"\xff\xff"))
            assert code == "INVALID_ARGUMENT", name
        too_large = request("x" * (MAX_BODY_BYTES + (1 << 17)))
        code, _ = await error_of(stub(channel).ModelInfer(too_large))
        assert code == "RESOURCE_EXHAUSTED"
        assert behind.stand_in.requests == []

    run(tmp_path, scenario)


def test_readiness_is_what_the_supervisor_says(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        api = stub(channel)
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        for models in ({"router"}, set()):
            behind.health.ready = models
            reply = await api.ServerReady(service_pb2.ServerReadyRequest())
            model = await api.ModelReady(service_pb2.ModelReadyRequest(name="generate"))
            assert reply.ready == model.ready == bool(models)
            assert await health(b"") == (b"\x08\x01" if models else b"\x08\x02")
        assert (await api.ServerLive(service_pb2.ServerLiveRequest())).live

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineFailedError("broken"), "INTERNAL"),
        (ProcessEndedError("broken"), "UNAVAILABLE"),
        (ServerBusyError("full"), "UNAVAILABLE"),
        (ServerUnavailableError("starting"), "UNAVAILABLE"),
        (InvalidRequestError("wrong"), "INVALID_ARGUMENT"),
        (RequestTimeoutError("late"), "DEADLINE_EXCEEDED"),
        (RequestCancelledError("gone"), "CANCELLED"),
    ],
)
def test_every_error_has_its_code(tmp_path: Path, error: DraftproofError, code: str) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        behind.health.refusal = error
        found, received = await error_of(stub(channel).ModelInfer(request()))
        assert (found, type(received)) == (code, type(error))

    run(tmp_path, scenario)


class Asked:
    """A stream on which a request hangs after its first response."""

    def __init__(self, channel: Any, request_id: str = "mine", timeout_s: float | None = None) -> None:
        self.go_on = asyncio.Event()
        self._request = request("hang", 1, request_id)
        self.call = stub(channel).ModelStreamInfer(self._requests(), timeout=timeout_s)

    async def _requests(self) -> AsyncIterator[Any]:
        yield self._request
        await self.go_on.wait()
        yield request("more", 1, "more")

    async def begun(self) -> Asked:
        response = await self.call.read()
        assert response.infer_response.raw_output_contents[0][4:] == b"hang 0"
        return self


def test_a_deadline_is_kept_and_told(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        code, _ = await error_of(stub(channel).ModelInfer(request("hang"), timeout=0.3))
        assert code == "DEADLINE_EXCEEDED"
        asked = Asked(channel, timeout_s=0.5)
        responses, code = [], ""
        try:
            responses = [response async for response in asked.call]
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        assert code == "DEADLINE_EXCEEDED" or isinstance(told(responses[-1]), RequestTimeoutError)
        await behind.all_ended()

    run(tmp_path, scenario)


def test_a_stream_whose_second_request_is_refused_keeps_the_first(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        asked = [await Asked(channel, str(number)).begun() for number in range(4)]
        asked[0].go_on.set()
        refused = await asyncio.wait_for(asked[0].call.read(), 10)
        assert isinstance(told(refused), ServerBusyError) and refused.infer_response.id == "more"
        assert behind.calls.num_open == 4
        for each in asked:
            each.call.cancel()
        await behind.all_ended()

    run(tmp_path, scenario)
