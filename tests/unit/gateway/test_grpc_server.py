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
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from pipelines.triton.gateway.grpc_server import GrpcServer
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES
from pipelines.triton.gateway.triton import KEY_HEADER
from tests.unit.gateway.stand_in_triton import SECRET_PATH, Behind, behind_the_gateway, until

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


def test_requests_are_answered_and_carry_the_key(tmp_path: Path) -> None:
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
        assert [each.parameters["draftproof_key"].string_param for each in behind.stand_in.requests] == [
            behind.key
        ] * 3
        assert behind.calls.num_open == 0

    run(tmp_path, scenario)


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
def test_a_name_is_turned_into_a_model_and_an_arm(tmp_path: Path, asked: str, model: str, arm: str) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        api, key = stub(channel), ((KEY_HEADER, behind.key),)
        replies = [await api.ModelInfer(request(model=asked), metadata=key)]
        call = api.ModelStreamInfer(iter([request(model=asked)]), metadata=key)
        replies += [response.infer_response async for response in call]
        assert {each.model_name for each in replies} == {asked}
        for sent in behind.stand_in.requests:
            assert (sent.model_name, sent.parameters["draftproof_arm"].string_param) == (model, arm)
        described = await api.ModelMetadata(service_pb2.ModelMetadataRequest(name=asked), metadata=key)
        config = await api.ModelConfig(service_pb2.ModelConfigRequest(name=asked), metadata=key)
        assert described.name == config.config.name == asked
        assert behind.stand_in.described == [model] * 2
        behind.health.ready = {model}
        assert (await api.ModelReady(service_pb2.ModelReadyRequest(name=asked))).ready

    run(tmp_path, scenario)


def test_a_model_of_the_repository_comes_before_an_alias(tmp_path: Path) -> None:
    config = tmp_path / "model_repository" / "target" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.touch()

    async def scenario(behind: Behind, channel: Any) -> None:
        await stub(channel).ModelInfer(request(model="target"), metadata=((KEY_HEADER, behind.key),))
        [sent] = behind.stand_in.requests
        assert sent.model_name == "target" and "draftproof_arm" not in sent.parameters

    run(tmp_path, scenario)


def test_internal_models_and_paths_are_open_to_operators_alone(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        api, key = stub(channel), ((KEY_HEADER, behind.key),)
        for asked in (
            lambda metadata: api.ModelInfer(request(model="speculative"), metadata=metadata),
            lambda metadata: api.ModelConfig(
                service_pb2.ModelConfigRequest(name="target"), metadata=metadata
            ),
            lambda metadata: api.ModelMetadata(
                service_pb2.ModelMetadataRequest(name="draft"), metadata=metadata
            ),
        ):
            for wrong in (None, ((KEY_HEADER, "guess"),), ((KEY_HEADER, ""),)):
                code, error = await error_of(asked(wrong))
                assert code == "INVALID_ARGUMENT" and isinstance(error, InvalidRequestError)
            await asked(key)
        config = service_pb2.ModelConfigRequest(name="generate")
        reply = await api.ModelConfig(config)
        assert not reply.config.parameters and reply.config.input
        reply = await api.ModelConfig(config, metadata=key)
        assert reply.config.parameters["target_engine_dir"].string_value == SECRET_PATH
        [response] = await stream(channel, request(model="speculative"))
        assert isinstance(told(response), InvalidRequestError)

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
    ("text", "code", "kind"),
    [
        ("draftproof/engine_failed: broken", "INTERNAL", EngineFailedError),
        ("draftproof/process_ended: broken", "UNAVAILABLE", ProcessEndedError),
        ("draftproof/invalid_request: wrong", "INVALID_ARGUMENT", InvalidRequestError),
        ("break", "UNAVAILABLE", ServerUnavailableError),
    ],
)
def test_what_triton_answers_is_told(
    tmp_path: Path, text: str, code: str, kind: type[DraftproofError]
) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        found, error = await error_of(stub(channel).ModelInfer(request(text)))
        assert (found, type(error)) == (code, kind)
        *_, last = await stream(channel, request(text, 1, "mine"))
        assert type(told(last)) is kind and last.infer_response.id == "mine"
        assert behind.calls.num_open == 0

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


def test_the_end_of_a_model_s_process_ends_its_answers(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        asked = await Asked(channel).begun()
        whole = asyncio.ensure_future(stub(channel).ModelInfer(request("hang")))
        await until(lambda: len(behind.stand_in.requests) == 2)
        behind.end("router", EngineFailedError("the model's process ended"))
        last = await asyncio.wait_for(asked.call.read(), 10)
        assert isinstance(told(last), EngineFailedError) and last.infer_response.id == "mine"
        code, error = await asyncio.wait_for(error_of(whole), 10)
        assert code == "INTERNAL" and isinstance(error, EngineFailedError)
        assert behind.calls.num_open == 0
        asked.call.cancel()

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_what_it_asked_for(tmp_path: Path, is_stream: bool) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        if is_stream:
            call = (await Asked(channel).begun()).call
        else:
            call = stub(channel).ModelInfer(request("hang"))
            await until(lambda: bool(behind.stand_in.requests))
        assert behind.calls.num_open == 1
        call.cancel()
        await asyncio.wait_for(behind.stand_in.cancelled.wait(), 10)
        await behind.all_ended()

    run(tmp_path, scenario)


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


def test_one_request_more_than_the_limit_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(behind: Behind, channel: Any) -> None:
        asked = [await Asked(channel, str(number)).begun() for number in range(4)]
        code, error = await error_of(stub(channel).ModelInfer(request()))
        assert code == "UNAVAILABLE" and isinstance(error, ServerBusyError)
        [response] = await stream(channel, request(request_id="one more"))
        assert isinstance(told(response), ServerBusyError) and response.infer_response.id == "one more"
        asked[0].go_on.set()  # a stream with an open request is refused a second one, and keeps the first
        refused = await asyncio.wait_for(asked[0].call.read(), 10)
        assert isinstance(told(refused), ServerBusyError) and refused.infer_response.id == "more"
        assert behind.calls.num_open == 4
        for each in asked:
            each.call.cancel()
        await behind.all_ended()

    run(tmp_path, scenario)
