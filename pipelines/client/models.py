"""Calls to any model of a Triton server by its tensors, whose types its own configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from pipelines.client.connection import Timeouts, address_of, key_of_environment
from pipelines.client.grpc_transport import GrpcTransport, as_error, raw_contents, tensor_values
from pipelines.client.refusals import refusal

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of one model.

    Attributes:
        model: Name of the model.
        datatypes: Name of an input -> Triton's datatype, such as INT32, or BYTES for text.
        has_batch_dimension: Whether tensors have a batch dimension.
    """

    model: str
    datatypes: Mapping[str, str]
    has_batch_dimension: bool

    def tensor(self, name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
        """Convert values of an input to the array that the model takes, with its batch dimension."""
        array = np.array(values, triton_to_np_dtype(self.datatypes[name]))
        return array.reshape(1, -1) if self.has_batch_dimension else array


def connect_to_models(url: str, timeouts: Timeouts | None = None, key: str | None = None) -> GrpcModels:
    """Connect to a server; arguments as for ``Client.connect``.

    Raises:
        InvalidRequestError: The address is invalid.
    """
    key = key_of_environment() if key is None else key
    return GrpcModels(address_of(url), timeouts or Timeouts(), key)


class GrpcModels(GrpcTransport):
    """A connection to one server; use one per thread."""

    def describe(self, model: str) -> ModelInputs:
        """Request the inputs of a model.

        Raises:
            InvalidRequestError: There is no such model.
        """
        reply = self._ask(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model))
        config = MessageToDict(reply.config, preserving_proto_field_name=True)
        types = {
            tensor["name"]: str(tensor["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
            for tensor in config.get("input", ())
        }
        return ModelInputs(model, types, has_batch_dimension=int(config.get("max_batch_size", 0)) > 0)

    def infer(self, inputs: ModelInputs, values: Tensors) -> list[Tensors]:
        """Send one request and wait for all its responses.

        Raises:
            DraftproofError: The server raised it, or the call broke.
        """
        message = service_pb2.ModelInferRequest(model_name=inputs.model)
        # Without this, the end of an answer without responses would never arrive.
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, array in values.items():
            datatype = inputs.datatypes[name]
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
        output.name: np.array(tensor_values(output.datatype, raw)).reshape(tuple(output.shape))
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
