"""Tests of what holds for every way to ask the gateway: both protocols, streamed or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    ForbiddenError,
    InvalidRequestError,
    ProcessEndedError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from tests.unit.gateway.running_gateway import WAYS, Gateway, request, running_gateway, until
from tests.unit.gateway.stand_in_triton import SECRET_PATH

every_way = pytest.mark.parametrize("way", WAYS)
both_protocols = pytest.mark.parametrize("protocol", ["grpc", "http"])


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
async def test_a_name_is_turned_into_a_model_and_an_arm(
    gateway: Gateway, way: str, asked: str, model: str, arm: str
) -> None:
    assert await gateway.ask(way, model=asked, key=gateway.key) == (asked, "hello 0")
    [sent] = gateway.triton.requests
    assert (sent.model_name, sent.parameters["draftproof_arm"].string_param) == (model, arm)
    assert sent.parameters["draftproof_key"].string_param == gateway.key


async def test_a_model_of_the_repository_comes_before_an_alias(tmp_path: Path) -> None:
    config = tmp_path / "model_repository" / "target" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.touch()
    async with running_gateway(tmp_path) as gateway:
        await gateway.ask("generate", model="target", key=gateway.key)
        [sent] = gateway.triton.requests
        assert sent.model_name == "target" and "draftproof_arm" not in sent.parameters


@every_way
async def test_internal_models_are_open_to_operators_alone(gateway: Gateway, way: str) -> None:
    for key in ("", "guess", gateway.key[:-1]):
        with pytest.raises(InvalidRequestError, match="clients cannot use this model") as refused:
            await gateway.ask(way, model="speculative", key=key)
        assert gateway.key not in str(refused.value)
    assert gateway.triton.requests == []


async def test_the_arm_is_chosen_by_operators_alone(gateway: Gateway) -> None:
    message = request(model="router")
    message.inputs.add(name="arm", datatype="BYTES", shape=[1, 1])
    message.raw_input_contents.append(b"\7\0\0\0control")
    found, error = await gateway.error_of(
        gateway.stub.ModelInfer(message, metadata=gateway.metadata("guess"))
    )
    assert (found, type(error)) == ("PERMISSION_DENIED", ForbiddenError)
    tensors = {"text_input": "hello", "max_tokens": 1, "arm": "control"}
    given = [
        {"name": name, "datatype": "INT32" if value == 1 else "BYTES", "shape": [1, 1], "data": [value]}
        for name, value in tensors.items()
    ]
    async with gateway.session.post("/v2/models/router/infer", json={"inputs": given}) as reply:
        refused = from_wire((await reply.json())["error"])
    assert (reply.status, type(refused)) == (403, ForbiddenError)
    assert gateway.triton.requests == []
    await gateway.stub.ModelInfer(message, metadata=gateway.metadata(gateway.key))
    assert [each.name for each in gateway.triton.requests[0].inputs] == ["text_input", "max_tokens", "arm"]


@every_way
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("draftproof/engine_failed: broken", EngineFailedError),
        ("draftproof/request_timeout: late", RequestTimeoutError),
        ("an error of Triton's own", InvalidRequestError),
        ("Stub process 'router_0_0' is not healthy. error", EngineFailedError),
        ("break", ServerUnavailableError),
    ],
)
async def test_an_error_of_triton_reaches_the_client(
    gateway: Gateway, way: str, text: str, kind: type[DraftproofError]
) -> None:
    with pytest.raises(kind) as failed:
        await gateway.ask(way, text)
    assert type(failed.value) is kind


@every_way
async def test_what_the_supervisor_refuses_does_not_reach_triton(gateway: Gateway, way: str) -> None:
    gateway.health.refusal = ServerUnavailableError("the model is being replaced")
    with pytest.raises(ServerUnavailableError, match="being replaced"):
        await gateway.ask(way)
    assert gateway.triton.requests == []


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (InvalidRequestError("wrong"), "INVALID_ARGUMENT", 400),
        (ServerBusyError("full"), "UNAVAILABLE", 503),
        (ServerUnavailableError("starting"), "UNAVAILABLE", 503),
        (ProcessEndedError("broken"), "UNAVAILABLE", 503),
        (RequestTimeoutError("late"), "DEADLINE_EXCEEDED", 504),
        (EngineFailedError("broken"), "INTERNAL", 500),
        (RequestCancelledError("gone"), "CANCELLED", 500),
    ],
)
async def test_an_error_has_its_code_and_its_status(
    gateway: Gateway, error: DraftproofError, code: str, status: int
) -> None:
    gateway.health.refusal = error
    found, received = await gateway.error_of(gateway.stub.ModelInfer(request()))
    assert (found, type(received)) == (code, type(error))
    for action in ("generate", "generate_stream", "infer"):
        async with gateway.session.post(f"/v2/models/generate/{action}", json={}) as reply:
            document = await reply.json()
            assert (reply.status, "Retry-After" in reply.headers) == (status, status == 503)
        assert set(document) == {"error"} and type(from_wire(document["error"])) is type(error)


@every_way
async def test_the_end_of_a_models_process_ends_its_answers(gateway: Gateway, way: str) -> None:
    asked = asyncio.create_task(gateway.ask(way, "hang"))
    await until(lambda: bool(gateway.triton.requests))
    assert gateway.calls.end("router", ProcessEndedError("it ended: it was killed")) == 1
    with pytest.raises(ProcessEndedError, match="it was killed"):
        await asked
    await gateway.triton.cancelled.wait()


@every_way
async def test_a_client_that_leaves_ends_its_request(gateway: Gateway, way: str) -> None:
    asked = asyncio.create_task(gateway.ask(way, "hang"))
    await until(lambda: bool(gateway.triton.requests))
    assert gateway.calls.num_open == 1
    asked.cancel()
    await gateway.triton.cancelled.wait()


@every_way
async def test_one_request_more_than_the_limit_is_refused_at_once(gateway: Gateway, way: str) -> None:
    asked = [asyncio.create_task(gateway.ask(way, "hang")) for _ in range(4)]
    await until(lambda: len(gateway.triton.requests) == 4)
    with pytest.raises(ServerBusyError):
        await gateway.ask(way)
    assert gateway.calls.num_refused == 1
    for each in asked:
        each.cancel()
    await gateway.all_ended()
    assert await gateway.ask(way) == ("generate", "hello 0")


@every_way
async def test_the_call_of_a_failed_request_is_read_to_its_end(gateway: Gateway, way: str) -> None:
    """Triton may never release a call that is cancelled while it ends."""
    with pytest.raises(InvalidRequestError, match="slow error"):
        await gateway.ask(way, "slow error")
    await gateway.all_ended()
    await asyncio.sleep(0.1)  # a cancellation would arrive meanwhile
    assert not gateway.triton.cancelled.is_set()


@both_protocols
async def test_a_description_has_the_asked_name_and_no_secrets(gateway: Gateway, protocol: str) -> None:
    for kind in ("Metadata", "Config"):
        for key in ("", "guess"):
            with pytest.raises(InvalidRequestError, match="clients cannot use this model"):
                await gateway.described(protocol, kind, "speculative", key)
        assert await gateway.described(protocol, kind, "speculative", gateway.key)
        document = await gateway.described(protocol, kind, "generate_target")
        assert document["name"] == "generate_target" and gateway.triton.described[-1] == "router"
        assert SECRET_PATH not in str(document)
    operators = await gateway.described(protocol, "Config", "generate", gateway.key)
    assert operators["parameters"]["target_engine_dir"]["string_value"] == SECRET_PATH
    [first, *_] = (await gateway.described(protocol, "Metadata", "generate"))["inputs"]
    shape = [-1, 1] if protocol == "http" else ["-1", "1"]
    assert first == {"name": "text_input", "datatype": "BYTES", "shape": shape}


async def test_readiness_is_what_the_supervisor_says(gateway: Gateway) -> None:
    async def status(path: str) -> int:
        async with gateway.session.get(path) as reply:
            return int(reply.status)

    health = gateway.channel.unary_unary("/grpc.health.v1.Health/Check")
    for models, expected in (({"router"}, 200), (set(), 503)):
        gateway.health.ready = models
        assert await status("/v2/health/ready") == await status("/v2/models/generate/ready") == expected
        reply = await gateway.stub.ServerReady(service_pb2.ServerReadyRequest())
        model = await gateway.stub.ModelReady(service_pb2.ModelReadyRequest(name="generate"))
        assert reply.ready == model.ready == bool(models)
        assert await health(b"") == (b"\x08\x01" if models else b"\x08\x02")
        assert await status("/v2/models/ensemble/ready") == await status("/v2/models/%FF%00/ready") == 503
    assert (await gateway.stub.ServerLive(service_pb2.ServerLiveRequest())).live
    assert await status("/v2/health/live") == 200
