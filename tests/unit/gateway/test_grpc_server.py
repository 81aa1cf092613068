"""Tests of the gateway over gRPC: closed methods, ids of a stream, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import InvalidRequestError, RequestTimeoutError, ServerBusyError, from_wire
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES
from tests.unit.gateway.running_gateway import Gateway, request

OPEN = {
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig"),
    *("ModelInfer", "ModelStreamInfer"),
}


async def test_every_other_method_of_the_service_is_closed(gateway: Gateway) -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    closed = {method.name for method in service.methods} - OPEN
    assert {"RepositoryModelLoad", "LogSettings", "SystemSharedMemoryRegister"} <= closed
    for name in closed:
        method = gateway.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        code, _ = await gateway.error_of(method(b"", metadata=gateway.metadata(gateway.key)))
        assert code == "UNIMPLEMENTED", name


@pytest.mark.parametrize("num_responses", [0, 2])
async def test_a_call_for_one_response_gets_exactly_one(gateway: Gateway, num_responses: int) -> None:
    code, error = await gateway.error_of(gateway.stub.ModelInfer(request("hello", num_responses)))
    assert code == "INVALID_ARGUMENT" and f"the model sent {num_responses}" in str(error)


def streaming(is_true: bool, is_raw: bool) -> Any:
    message = request()
    message.inputs.add(name="stream", datatype="BOOL", shape=[1, 1])
    message.raw_input_contents.append(bytes([is_true]))
    if not is_raw:
        del message.raw_input_contents[:]
        message.inputs[0].contents.bytes_contents.append(b"hello")
        message.inputs[1].contents.int_contents.append(1)
        message.inputs[2].contents.bool_contents.append(is_true)
    return message


@pytest.mark.parametrize("is_raw", [True, False])
async def test_a_call_for_one_response_that_asks_for_a_stream_does_not_reach_triton(
    gateway: Gateway, is_raw: bool
) -> None:
    code, error = await gateway.error_of(gateway.stub.ModelInfer(streaming(True, is_raw)))
    assert code == "INVALID_ARGUMENT" and "stream is true" in str(error)
    assert gateway.triton.requests == []
    assert (await gateway.stub.ModelInfer(streaming(False, True))).outputs


async def test_the_servers_metadata_say_on_what_its_answers_depend(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = ServerIdentity("demo", "0" * 64, "embedded", "a processor", 2)
    monkeypatch.setattr(ServerIdentity, "read", lambda directory: identity)
    reply = await gateway.stub.ServerMetadata(service_pb2.ServerMetadataRequest())
    assert (reply.name, reply.extensions[0]) == ("triton", "logging")
    assert ServerIdentity.of_extensions(reply.extensions) == identity


async def test_requests_of_one_stream_are_answered_by_their_ids(gateway: Gateway) -> None:
    reply = await gateway.stub.ModelInfer(request("hello", request_id="mine"))
    assert (reply.id, reply.raw_output_contents[0][4:]) == ("mine", b"hello 0")
    assert not reply.parameters, "marks of a stream"
    refused = request("x", request_id="bad")
    refused.outputs.add(name="text_output").parameters["classification"].int64_param = 3
    asked = iter([request("a", 2, "1"), refused, request("b", 1, "2")])
    responses = [each async for each in gateway.stub.ModelStreamInfer(asked)]
    found = [
        (each.infer_response.id, bytes(each.infer_response.raw_output_contents[0][4:]))
        for each in responses
        if each.infer_response.outputs
    ]
    assert sorted(found) == [("1", b"a 0"), ("1", b"a 1"), ("2", b"b 0")]
    [error] = [each for each in responses if each.error_message]
    assert error.infer_response.id == "bad"
    assert isinstance(from_wire(error.error_message), InvalidRequestError)


async def test_bytes_that_are_no_message_are_refused(gateway: Gateway) -> None:
    for name in ("ModelInfer", "ModelReady", "ModelConfig", "ModelMetadata"):
        method = gateway.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        code, _ = await gateway.error_of(method(b"\xff\xff"))
        assert code == "INVALID_ARGUMENT", name
    too_large = request("x" * (MAX_BODY_BYTES + (1 << 17)))
    code, _ = await gateway.error_of(gateway.stub.ModelInfer(too_large))
    assert code == "RESOURCE_EXHAUSTED"
    assert gateway.triton.requests == []


async def test_a_deadline_is_kept_and_told(gateway: Gateway) -> None:
    code, _ = await gateway.error_of(gateway.stub.ModelInfer(request("hang"), timeout=0.3))
    assert code == "DEADLINE_EXCEEDED"
    call = gateway.stub.ModelStreamInfer(iter([request("hang")]), timeout=0.5)
    try:
        responses = [each async for each in call]
    except grpc.aio.AioRpcError as error:
        assert error.code().name == "DEADLINE_EXCEEDED"
    else:
        assert isinstance(from_wire(responses[-1].error_message), RequestTimeoutError)


async def test_a_stream_whose_second_request_is_refused_keeps_the_first(gateway: Gateway) -> None:
    go_on = asyncio.Event()

    async def requests(number: int) -> AsyncIterator[Any]:
        yield request("hang", 1, str(number))
        if number == 0:
            await go_on.wait()
            yield request("more", 1, "more")

    calls = [gateway.stub.ModelStreamInfer(requests(number)) for number in range(4)]
    for call in calls:
        assert (await call.read()).infer_response.raw_output_contents[0][4:] == b"hang 0"
    go_on.set()
    refused = await asyncio.wait_for(calls[0].read(), 10)
    assert isinstance(from_wire(refused.error_message), ServerBusyError)
    assert refused.infer_response.id == "more" and gateway.calls.num_open == 4
    for call in calls:
        call.cancel()
