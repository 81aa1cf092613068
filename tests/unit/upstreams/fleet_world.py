"""Servers of a fleet in this process, on real gRPC connections; each request has one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.client.tensors import tensor_values
from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import DraftproofError
from pipelines.upstreams.fleet.addresses import Addresses
from pipelines.upstreams.fleet.fleet import Fleet
from pipelines.wire.request import CompletionRequest

OWN = ServerIdentity("demo", "0" * 64, "embedded", "some processor", 2)
PREFIX_TOKENS = 32
_CHUNK = 3


def answer_of(request: CompletionRequest) -> list[int]:
    """Return the tokens that every server of the fleet answers."""
    start = sum(request.prompt_ids) + 7 * (request.seed or 0)
    return [ord("a") + (start + number * number) % 26 for number in range(request.max_tokens)]


class StandInServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers in chunks of three tokens; a test says what goes wrong.

    Attributes:
        address: Where it listens, after ``start``.
        is_ready: What it says of itself; None does not answer.
        fails: Raised as the answer's error; None for none.
        fails_after: Tokens of an answer before it fails, or before it is silent.
    """

    def __init__(self, identity: ServerIdentity = OWN) -> None:
        self.address = ""
        self.asked: list[dict[str, list[Any]]] = []
        self.identity = identity
        self.is_ready: bool | None = True
        self.fails: DraftproofError | None = None
        self.fails_after = 0
        self.is_silent = False
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        wanted = self.address or "127.0.0.1:0"
        self.address = f"{wanted.rpartition(':')[0]}:{self._server.add_insecure_port(wanted)}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        if self.is_ready is None:
            await asyncio.sleep(600)
        return service_pb2.ModelReadyResponse(ready=bool(self.is_ready))

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(extensions=["other", self.identity.extension])

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            inputs = {
                each.name: tensor_values(each.datatype, raw)
                for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)
            }
            self.asked.append(inputs)
            whole = answer_of(
                CompletionRequest(
                    prompt_ids=tuple(inputs["input_ids"]),
                    max_tokens=inputs["max_tokens"][0],
                    seed=inputs["seed"][0],
                )
            )
            rest = whole[len(inputs.get("resume_output_ids", ())) :]
            for begin in range(0, len(rest), _CHUNK):
                if self.fails_after <= begin and self.is_silent:
                    await asyncio.sleep(600)
                if self.fails_after <= begin and self.fails is not None:
                    yield service_pb2.ModelStreamInferResponse(error_message=self.fails.to_wire())
                    return
                end = min(begin + _CHUNK, len(rest))
                yield _response(rest[begin:end], end, is_final=end == len(rest))


def _response(ids: list[int], sequence_length: int, *, is_final: bool) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.parameters["triton_final_response"].bool_param = is_final
    text, reason = bytes(ids), b"length" if is_final else b""
    for name, datatype, raw in (
        ("text_output", "BYTES", len(text).to_bytes(4, "little") + text),
        ("finish_reason", "BYTES", len(reason).to_bytes(4, "little") + reason),
        ("output_ids", "INT32", np.array(ids, np.int32).tobytes()),
        ("sequence_length", "INT32", np.array([sequence_length], np.int32).tobytes()),
    ):
        message.infer_response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        message.infer_response.raw_output_contents.append(raw)
    return message


@asynccontextmanager
async def fleet_of(
    servers: Sequence[StandInServer], absent: Sequence[str] = (), name: str = ""
) -> AsyncIterator[Fleet]:
    """Run a fleet of these servers, and of addresses at which nobody answers.

    With a name in DNS, the fleet has the addresses of that name instead.
    """
    for server in servers:
        await server.start()
    model: Any = SimpleNamespace(max_requests=8)
    named = () if name else [*absent, *(server.address for server in servers)]
    fleet = Fleet(Addresses(named, name), model, OWN, PREFIX_TOKENS, find_interval_s=0.02)
    try:
        await fleet.begin()
        yield fleet
    finally:
        await fleet.close()
        for server in servers:
            await server.stop()
