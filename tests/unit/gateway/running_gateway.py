"""A gateway with both protocols in front of a stand-in for Triton, and the ways to ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
from aiohttp import ClientSession
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import from_wire
from pipelines.triton.gateway.grpc_server import GrpcServer
from pipelines.triton.gateway.http_server import HttpServer
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.relay import Relay
from pipelines.triton.gateway.serving import listen
from pipelines.triton.gateway.triton import KEY_HEADER, Triton
from tests.unit.gateway.stand_in_triton import StandInHealth, StandInTriton

WAYS = ("ModelInfer", "ModelStreamInfer", "generate", "generate_stream", "infer")


async def until(is_so: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async def poll() -> None:
        while not is_so():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), timeout_s)


def request(
    text: str = "hello", num_responses: int = 1, request_id: str = "", model: str = "generate"
) -> Any:
    """Return a ``ModelInferRequest``."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    data = text.encode()
    for name, datatype, raw in (
        ("text_input", "BYTES", len(data).to_bytes(4, "little") + data),
        ("max_tokens", "INT32", np.int32(num_responses).tobytes()),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        message.raw_input_contents.append(raw)
    return message


class Gateway:
    """A running gateway."""

    def __init__(self, place: TritonPlace, calls: OpenCalls) -> None:
        self.key = place.server_key
        self.port = Ports.free().http
        self.triton = StandInTriton()
        self.health = StandInHealth()
        self.calls = calls
        self.channel: Any = None
        self.stub: Any = None
        self.session: Any = None

    async def ask(
        self, way: str, text: str = "hello", *, model: str = "generate", key: str = ""
    ) -> tuple[str, str]:
        """Return the model's name and the text of the first response.

        Raises:
            DraftproofError: The last response is this error.
        """
        if way.startswith("Model"):
            return await self._ask_grpc(way, request(text, 1, "mine", model), self.metadata(key))
        return await self._ask_http(way, text, model, {KEY_HEADER: key} if key else {})

    def metadata(self, key: str) -> Any:
        """Return gRPC's metadata with a key."""
        return ((KEY_HEADER, key),) if key else None

    async def described(self, protocol: str, kind: str, model: str, key: str = "") -> dict[str, Any]:
        """Return a model's "Metadata" or "Config" as a document.

        Raises:
            DraftproofError: It was refused.
        """
        if protocol == "http":
            path = f"/v2/models/{model}" + ("/config" if kind == "Config" else "")
            reply = await self.session.get(path, headers={KEY_HEADER: key} if key else {})
            document = await reply.json()
            return raise_ours(document["error"]) if "error" in document else document
        asked = getattr(service_pb2, f"Model{kind}Request")(name=model)
        try:
            answer = await getattr(self.stub, f"Model{kind}")(asked, metadata=self.metadata(key))
        except grpc.aio.AioRpcError as failed:
            raise_ours(failed.details())
        message = answer.config if kind == "Config" else answer
        return dict(MessageToDict(message, preserving_proto_field_name=True))

    async def error_of(self, call: Any) -> tuple[str, Any]:
        """Return the code of a gRPC call that fails, and our error."""
        try:
            await call
        except grpc.aio.AioRpcError as failed:
            return failed.code().name, from_wire(failed.details())
        raise AssertionError("an answer where an error was expected")

    async def all_ended(self) -> None:
        """Wait until no request is open."""
        await until(lambda: self.calls.num_open == 0)

    async def _ask_grpc(self, way: str, message: Any, metadata: Any) -> tuple[str, str]:
        if way == "ModelInfer":
            try:
                responses = [await self.stub.ModelInfer(message, metadata=metadata)]
            except grpc.aio.AioRpcError as failed:
                raise_ours(failed.details())
        else:
            responses = []
            async for each in self.stub.ModelStreamInfer(iter([message]), metadata=metadata):
                if each.error_message:
                    assert each.infer_response.id == "mine"
                    raise_ours(each.error_message)
                responses.append(each.infer_response)
        return responses[0].model_name, responses[0].raw_output_contents[0][4:].decode()

    async def _ask_http(self, way: str, text: str, model: str, headers: dict[str, str]) -> tuple[str, str]:
        body: Any = {"text_input": text, "max_tokens": 1}
        if way == "infer":
            given = {"text_input": ("BYTES", [text]), "max_tokens": ("INT32", [1])}
            body = {
                "inputs": [
                    {"name": name, "datatype": datatype, "shape": [1, 1], "data": data}
                    for name, (datatype, data) in given.items()
                ]
            }
        async with self.session.post(f"/v2/models/{model}/{way}", json=body, headers=headers) as reply:
            events = (await reply.text()).split("\n\n")
        documents = [json.loads(each.removeprefix("data: ")) for each in events if each]
        if error := documents[-1].get("error"):
            raise_ours(error)
        if way == "infer":
            return documents[0]["model_name"], documents[0]["outputs"][0]["data"][0]
        return documents[0]["model_name"], documents[0]["text_output"]


def raise_ours(text: str) -> NoReturn:
    """Raise our error that a client received, which shows nothing of the server's inside."""
    error = from_wire(text)
    assert error is not None and "Traceback" not in text, text
    raise error


@asynccontextmanager
async def running_gateway(directory: Path) -> AsyncIterator[Gateway]:
    place = TritonPlace.make(directory)
    async with AsyncExitStack() as running:
        connected = Triton(place)
        running.push_async_callback(connected.aclose)
        gateway = Gateway(place, OpenCalls(max_open=4))
        behind = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(gateway.triton, behind)
        behind.add_insecure_port(place.grpc)
        await behind.start()
        running.push_async_callback(behind.stop, 0)
        supervisor: Any = gateway.health
        relay = Relay(connected, supervisor, gateway.calls, directory / "model_repository")
        grpc_port = Ports.free().grpc
        methods = GrpcServer(relay, directory)
        server = await methods.start(f"{HOST}:{grpc_port}")
        running.push_async_callback(server.stop, 0)
        application = HttpServer(relay).application()
        await listen(running, application, HOST, gateway.port)
        channel = grpc.aio.insecure_channel(f"{HOST}:{grpc_port}")
        gateway.channel = await running.enter_async_context(channel)
        gateway.stub = service_pb2_grpc.GRPCInferenceServiceStub(gateway.channel)
        gateway.session = await running.enter_async_context(ClientSession(f"http://{HOST}:{gateway.port}"))
        yield gateway
        await gateway.all_ended()
