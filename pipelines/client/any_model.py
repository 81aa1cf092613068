"""Calls to any model of any Triton server, described by what the server itself says of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.client.client import split_url
from pipelines.client.timeouts import Timeouts
from pipelines.errors import InvalidRequestError

Tensors = dict[str, npt.NDArray[Any]]

NUMPY_TYPES: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
"""Triton's datatypes of fixed size, less BF16, which numpy does not have."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        datatype: Triton's word, such as INT32, or BYTES for text.
        dims: Without the batch dimension; -1 for any size.
        is_optional: Whether a request may leave it out.
    """

    datatype: str
    dims: tuple[int, ...]
    is_optional: bool


@dataclass(frozen=True)
class ModelSpec:
    """What a server says of one model.

    Attributes:
        name: The model.
        inputs: By name.
        outputs: By name.
        has_batch_dimension: Whether tensors begin with one.
        is_decoupled: Whether a request may have other than one response.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    has_batch_dimension: bool
    is_decoupled: bool

    def tensor(self, name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
        """Values of an input as the array that the model takes, with its batch dimension.

        Raises:
            InvalidRequestError: The model takes another type.
        """
        spec = self.inputs[name]
        try:
            array = np.array(values, np.object_ if spec.datatype == "BYTES" else NUMPY_TYPES[spec.datatype])
        except (KeyError, ValueError, OverflowError) as error:
            raise InvalidRequestError(
                f"input {name} of model {self.name} cannot be filled",
                values=f"{list(values)!r}: {error!r}",
                limit=f"the model takes {spec.datatype}",
                remedy="name a model with NVIDIA's tensors",
            ) from error
        return array.reshape(1, -1) if self.has_batch_dimension else array


class ModelCalls(Protocol):
    """One server. Every method raises errors of ``pipelines.errors`` only. Use one object per thread."""

    def describe(self, model: str) -> ModelSpec:
        """Ask the server for a model's configuration; InvalidRequestError if it has no such model."""

    def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
        """Send one request and wait for all its responses, in order."""

    def close(self) -> None:
        """Close all connections."""


def connect_to_models(url: str, timeouts: Timeouts | None = None) -> ModelCalls:
    """Make the calls for an address as ``Client.connect`` takes it.

    Raises:
        InvalidRequestError: The address has another form.
    """
    scheme, address = split_url(url)
    if scheme == "grpc":
        from pipelines.client.grpc_models import GrpcModels

        return GrpcModels(address, timeouts or Timeouts())
    from pipelines.client.http_models import HttpModels

    return HttpModels(address, timeouts or Timeouts())


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read a model configuration, as Triton's JSON spells it."""

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
