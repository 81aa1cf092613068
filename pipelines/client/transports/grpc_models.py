"""Calls to any model over gRPC, by a stream of one request."""

from __future__ import annotations

from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from pipelines.client.any_model import ModelSpec, Tensors, spec_from_config
from pipelines.client.transports.grpc import GrpcTransport, as_error, raw_contents, tensor_values
from pipelines.client.transports.refusals import refusal


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
