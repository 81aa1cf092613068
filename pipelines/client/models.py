"""Calls to any model of any Triton server, described by the server's own model configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from pipelines.client.connection import Timeouts, address_of, key_of_environment
from pipelines.client.grpc_transport import GrpcTransport, as_error, raw_contents, tensor_values
from pipelines.client.refusals import refusal
from pipelines.errors import InvalidRequestError

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        datatype: Triton's datatype, such as INT32, or BYTES for text.
        dims: Dimensions without the batch dimension; -1 for any size.
        is_optional: Whether a request may omit it.
    """

    datatype: str
    dims: tuple[int, ...]
    is_optional: bool


@dataclass(frozen=True)
class ModelSpec:
    """Configuration of one model.

    Attributes:
        name: Name of the model.
        inputs: Name -> input.
        outputs: Name -> output.
        has_batch_dimension: Whether tensors have a batch dimension.
        is_decoupled: Whether a request can have any number of responses.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    has_batch_dimension: bool
    is_decoupled: bool

    def tensor(self, name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
        """Convert values of an input to the array that the model takes, with its batch dimension.

        Raises:
            InvalidRequestError: The values do not fit the input's datatype.
        """
        spec = self.inputs[name]
        try:
            array = np.array(values, triton_to_np_dtype(spec.datatype))
        except (ValueError, OverflowError) as error:
            raise InvalidRequestError(
                f"input {name} of model {self.name} cannot be filled",
                values=f"{list(values)!r}: {error!r}",
                limit=f"values of type {spec.datatype}",
                remedy="name a model with NVIDIA's tensors",
            ) from error
        return array.reshape(1, -1) if self.has_batch_dimension else array


class ModelCalls(Protocol):
    """Connection to one server; use one per thread. Methods raise only errors of ``pipelines.errors``."""

    def describe(self, model: str) -> ModelSpec:
        """Request a model's configuration; InvalidRequestError if there is no such model."""

    def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
        """Send one request and return all its responses in order."""

    def close(self) -> None:
        """Close all connections."""


def connect_to_models(url: str, timeouts: Timeouts | None = None, key: str | None = None) -> ModelCalls:
    """Connect to a server; arguments as for ``Client.connect``.

    Raises:
        InvalidRequestError: The address is invalid.
    """
    key = key_of_environment() if key is None else key
    return GrpcModels(address_of(url), timeouts or Timeouts(), key)


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Convert a model configuration from Triton's JSON."""

    def tensors(kind: str) -> dict[str, TensorSpec]:
        return {
            tensor["name"]: TensorSpec(
                datatype=str(tensor["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES"),
                dims=tuple(int(size) for size in tensor.get("dims", ())),
                is_optional=bool(tensor.get("optional", False)),
            )
            for tensor in config.get(kind, ())
        }

    return ModelSpec(
        name=str(config["name"]),
        inputs=tensors("input"),
        outputs=tensors("output"),
        has_batch_dimension=int(config.get("max_batch_size", 0)) > 0,
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
    )


class GrpcModels(GrpcTransport):
    """Implements ``ModelCalls`` over gRPC."""

    def describe(self, model: str) -> ModelSpec:
        """Request a model's configuration.

        Raises:
            InvalidRequestError: There is no such model.
        """
        reply = self._ask(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model))
        return spec_from_config(MessageToDict(reply.config, preserving_proto_field_name=True))

    def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
        """Send one request and wait for all its responses.

        Raises:
            DraftproofError: The server raised it, or the call broke.
        """
        message = service_pb2.ModelInferRequest(model_name=model.name)
        # Without this, the end of an answer without responses would never arrive.
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, array in inputs.items():
            datatype = model.inputs[name].datatype
            message.inputs.add(name=name, datatype=datatype, shape=array.shape)
            message.raw_input_contents.append(raw_contents(datatype, array.ravel()))
        call = self._stub.ModelStreamInfer(
            iter((message,)), timeout=self._timeouts.total_s, metadata=self._metadata
        )
        try:
            arrivals = list(call)  # read to its end, see ``GrpcCall.close``
        except grpc.RpcError as error:
            raise as_error(error, self._address, self._timeouts) from error
        for arrival in arrivals:
            if arrival.error_message:
                raise refusal(arrival.error_message)
        return [_tensors(each.infer_response) for each in arrivals if each.infer_response.outputs]


def _tensors(response: Any) -> Tensors:
    return {
        output.name: _array(output.datatype, raw).reshape(tuple(output.shape))
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _array(datatype: str, raw: bytes) -> npt.NDArray[Any]:
    if datatype == "BYTES":
        return np.array(
            [item.decode("utf-8", "replace") for item in tensor_values(datatype, raw)], np.object_
        )
    if datatype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, triton_to_np_dtype(datatype))
