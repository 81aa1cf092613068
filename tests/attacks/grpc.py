"""Attacks over gRPC, built with the protocol's own classes so that any field can be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc

from tests.attacks.attack import Address, Attack, Reply

TIMEOUT_S = 10.0
SERVICE = "/inference.GRPCInferenceService/"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def request(model: str = "generate", **fields: Any) -> Any:
    """Return a small well-formed request with extra fields."""
    made = messages.ModelInferRequest(model_name=model, **fields)
    if not made.inputs:
        made.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(
            b"x"
        )
        made.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1]).contents.int_contents.append(2)
    return made


def unary(name: str, make: Callable[[], Any], method: str = "ModelInfer") -> Attack:
    """Make an attack of one unary call; the message is built when it is sent, because some are large."""
    return Attack(name, lambda address: _call(address, method, make()))


def stream(name: str, make: Callable[[], list[Any]], *metadata: tuple[str, str]) -> Attack:
    """Make an attack of one stream that carries several requests."""
    return Attack(name, lambda address: _stream(address, make(), metadata))


def _call(address: Address, method: str, message: Any) -> Reply:
    def call(channel: grpc.Channel) -> str:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return str(getattr(stub, method)(message, timeout=TIMEOUT_S))

    return _over_channel(address, call)


def _stream(address: Address, sent: Iterable[Any], metadata: tuple[tuple[str, str], ...]) -> Reply:
    def call(channel: grpc.Channel) -> str:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        got = list(stub.ModelStreamInfer(iter(sent), timeout=TIMEOUT_S, metadata=metadata))
        return "; ".join(answer.error_message or "response" for answer in got)

    return _over_channel(address, call)


def _over_channel(address: Address, call: Callable[[grpc.Channel], str]) -> Reply:
    with grpc.insecure_channel(f"{address[0]}:{address[1]}", options=UNLIMITED) as channel:
        try:
            return Reply("OK", call(channel)[:2000])
        except grpc.RpcError as error:
            return Reply(error.code().name, (error.details() or "")[:2000])


def compressed(address: Address) -> Reply:
    """Send a message of 64 MiB that compresses to 64 kB."""

    def call(channel: grpc.Channel) -> str:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = raw_text((2**26).to_bytes(4, "little") + b"x" * 2**26)
        return str(stub.ModelInfer(message, timeout=TIMEOUT_S, compression=grpc.Compression.Gzip))

    return _over_channel(address, call)


def bytes_call(name: str, method: str, body: bytes) -> Attack:
    """Make an attack of one call with bytes that are no message, or to a method that the service lacks."""

    def send(address: Address) -> Reply:
        return _over_channel(
            address, lambda channel: repr(channel.unary_unary(method)(body, timeout=TIMEOUT_S))
        )

    return Attack(name, send)


def text_and(name: str, datatype: str, shape: list[int], raw: list[bytes]) -> Any:
    """Return a request with ``text_input`` and one more input, both as raw contents."""
    made = messages.ModelInferRequest(model_name="generate")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.extend(raw)
    return made


def raw_text(content: bytes) -> Any:
    return text_and("max_tokens", "INT32", [1, 1], [content, (2).to_bytes(4, "little")])


def contents(**fields: list[Any]) -> Any:
    """Return a request whose ``text_input`` carries explicit contents of any type."""
    made = request()
    made.inputs[0].contents.Clear()
    made.inputs[0].contents.MergeFrom(messages.InferTensorContents(**fields))
    return made


def output(name: str, **parameters: Any) -> Any:
    """Return a request for one output, with parameters set through the protocol's own class."""
    made = request()
    wanted = made.outputs.add(name=name)
    for key, value in parameters.items():
        wanted.parameters[key].CopyFrom(value)
    return made


def with_parameter(key: str, **value: Any) -> Any:
    made = request()
    made.parameters[key].CopyFrom(messages.InferParameter(**value))
    return made


def shaped(shape: list[int]) -> Any:
    made = request()
    made.inputs[1].shape[:] = shape
    return made


def batch_of(size: int) -> Any:
    """Return a request whose inputs all claim the given batch size but hold data for one."""
    made = request()
    for claimed in made.inputs:
        claimed.shape[0] = size
    return made


def in_shared_memory() -> Any:
    made = request()
    made.inputs[0].ClearField("contents")
    made.inputs[0].parameters["shared_memory_region"].string_param = "draftproof"
    made.inputs[0].parameters["shared_memory_byte_size"].int64_param = 64
    return made


def errors_in_streams(address: Address) -> Reply:
    """Send 20 streams that end at their first error (CVE-2026-24266) and whose state is used after that.

    Triton died in 11 of 30 such streams.
    """
    refused = request("generate")
    refused.inputs[1].contents.int_contents[:] = [0]
    sent = [request("generate"), refused] * 20
    replies = [_stream(address, sent, (("triton_grpc_error", "true"),)) for _ in range(20)]
    return replies[-1]


def cancel_race(address: Address) -> Reply:
    """CVE-2025-23322 and server#7368: cancel 300 calls at random instants around their answers."""
    draw = random.Random(7)
    with grpc.insecure_channel(f"{address[0]}:{address[1]}", options=UNLIMITED) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        codes = set()
        for _ in range(300):
            try:
                stub.ModelInfer(request(), timeout=draw.uniform(0.0005, 0.03))
                codes.add("OK")
            except grpc.RpcError as error:
                codes.add(error.code().name)
    return Reply(" ".join(sorted(codes)))


INTEGER = {"int64_param": 3}
CLASSIFICATION = messages.InferParameter(int64_param=3)

GRPC_ATTACKS = (
    unary("classification of text", lambda: output("text_output", classification=CLASSIFICATION)),
    unary(
        "classification of text, unlimited",
        lambda: output("text_output", classification=messages.InferParameter(int64_param=-1)),
    ),
    unary("classification of numbers", lambda: output("output_ids", classification=CLASSIFICATION)),
    stream(
        "classification of text, in a stream",
        lambda: [request("generate"), output("text_output", classification=CLASSIFICATION)],
    ),
    Attack("errors in streams that end at the first", errors_in_streams),
    Attack("cancelled at random instants", cancel_race),
    unary("string that claims 4 GiB", lambda: raw_text(b"\xff\xff\xff\xffx")),
    unary("string that claims more than sent", lambda: raw_text(b"\x10\0\0\0x")),
    unary("string of 3 bytes of length", lambda: raw_text(b"\1\0\0")),
    unary("no raw contents for an input", lambda: text_and("max_tokens", "INT32", [1, 1], [b"\1\0\0\0x"])),
    unary("more raw contents than inputs", lambda: _with_raw(raw_text(b"\1\0\0\0x"), 10_000)),
    unary("contents of no kind", lambda: contents()),
    unary("contents of two kinds", lambda: contents(bytes_contents=[b"x"], int_contents=[1])),
    unary("contents of another type", lambda: contents(fp64_contents=[1.0])),
    unary("contents and raw contents", lambda: _with_raw(request(), 2)),
    unary("shape of 2^62+1", lambda: shaped([1, 2**62 + 1])),
    unary("shape of -1", lambda: shaped([1, -1])),
    unary("shape of -2^63", lambda: shaped([-(2**63), 1])),
    unary("shape without dimensions", lambda: shaped([])),
    unary("shape of 100,000 dimensions", lambda: shaped([1] * 100_000)),
    unary("batch of 0", lambda: batch_of(0)),
    unary("batch of -1", lambda: batch_of(-1)),
    unary("batch of 2^32+1", lambda: batch_of(2**32 + 1)),
    unary("batch of 2^31", lambda: batch_of(2**31)),
    unary("the same input twice", lambda: _repeated_inputs(2)),
    unary("100,000 inputs", lambda: _repeated_inputs(100_000)),
    unary("200,000 times the same output", lambda: _repeated_outputs(200_000)),
    unary("100,000 parameters", lambda: _many_parameters(100_000)),
    unary("text of 64 MiB", lambda: raw_text((2**26).to_bytes(4, "little") + b"x" * 2**26)),
    Attack("gzip bomb", compressed),
    unary("request id of 1 MB", lambda: request(id="i" * 10**6)),
    unary("model version that is no number", lambda: request(model_version="9" * 40)),
    unary("sequence id of text", lambda: with_parameter("sequence_id", string_param="s" * 10_000)),
    unary("sequence id that is a flag", lambda: with_parameter("sequence_id", bool_param=True)),
    unary("priority below 0", lambda: with_parameter("priority", int64_param=-1)),
    unary("timeout below 0", lambda: with_parameter("timeout", int64_param=-1)),
    unary("parameter without a value", lambda: with_parameter("x")),
    unary("parameter that Triton reserves", lambda: with_parameter("triton_x", **INTEGER)),
    unary("internal model speculative", lambda: request("speculative")),
    stream("internal model target, in a stream", lambda: [request("generate"), request("target")]),
    unary("input in shared memory", in_shared_memory),
    bytes_call("message of garbage", SERVICE + "ModelInfer", b"\xff" * 100),
    bytes_call("method that is none", SERVICE + "Nothing", b""),
    bytes_call("reflection", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b""),
    unary("list the repository", messages.RepositoryIndexRequest, "RepositoryIndex"),
    unary(
        "load a model", lambda: messages.RepositoryModelLoadRequest(model_name="pwn"), "RepositoryModelLoad"
    ),
    unary(
        "unload a model",
        lambda: messages.RepositoryModelUnloadRequest(model_name="pwn"),
        "RepositoryModelUnload",
    ),
    unary("statistics", messages.ModelStatisticsRequest, "ModelStatistics"),
    unary("read the tracing", messages.TraceSettingRequest, "TraceSetting"),
    unary("read the logging", messages.LogSettingsRequest, "LogSettings"),
    unary("status of shared memory", messages.SystemSharedMemoryStatusRequest, "SystemSharedMemoryStatus"),
    unary(
        "register shared memory",
        lambda: messages.SystemSharedMemoryRegisterRequest(
            name="stolen", key="/draftproof_no_such_region", byte_size=64
        ),
        "SystemSharedMemoryRegister",
    ),
    unary(
        "register CUDA memory",
        lambda: messages.CudaSharedMemoryRegisterRequest(name="x", raw_handle=b"\0" * 64, byte_size=64),
        "CudaSharedMemoryRegister",
    ),
)


def _with_raw(made: Any, count: int) -> Any:
    made.raw_input_contents.extend([b"\0\0\0\0"] * count)
    return made


def _repeated_inputs(count: int) -> Any:
    made = request()
    for _ in range(count):
        made.inputs.add().CopyFrom(made.inputs[0])
    return made


def _repeated_outputs(count: int) -> Any:
    made = request()
    for _ in range(count):
        made.outputs.add(name="text_output")
    return made


def _many_parameters(count: int) -> Any:
    made = request()
    for index in range(count):
        made.parameters[f"p{index}"].int64_param = index
    return made
