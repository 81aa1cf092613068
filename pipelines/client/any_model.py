"""Calls to any model of any Triton server, described by the server's own model configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tritonclient.utils import triton_to_np_dtype

from pipelines.client.client import split_url
from pipelines.client.server_key import key_of_environment
from pipelines.client.timeouts import Timeouts
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
    scheme, address = split_url(url)
    key = key_of_environment() if key is None else key
    if scheme == "grpc":
        from pipelines.client.transports.grpc_models import GrpcModels

        return GrpcModels(address, timeouts or Timeouts(), key)
    from pipelines.client.transports.http_models import HttpModels

    return HttpModels(address, timeouts or Timeouts(), key)


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
