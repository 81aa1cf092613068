"""Calls to any model over HTTP: KServe's ``infer``, or ``generate_stream`` for decoupled models."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
from tritonclient.utils import triton_to_np_dtype as numpy_type

from pipelines.client.any_model import ModelSpec, Tensors, spec_from_config
from pipelines.client.transports.http import HttpTransport, as_error, refusal_of
from pipelines.client.transports.refusals import refusal


class HttpModels(HttpTransport):
    """Implements ``ModelCalls`` over HTTP."""

    def describe(self, model: str) -> ModelSpec:
        """Request a model's configuration.

        Raises:
            InvalidRequestError: There is no such model.
        """
        return spec_from_config(self._ask(f"/v2/models/{model}/config"))

    def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
        """Send one request and wait for all its responses.

        Outputs of a decoupled model are flat, because events of ``generate_stream`` contain no shapes.

        Raises:
            DraftproofError: The server raised it, or the call broke.
        """
        if model.is_decoupled:
            body: dict[str, Any] = {name: _flat(array.tolist()) for name, array in inputs.items()}
            text = self._post(f"/v2/models/{model.name}/generate_stream", body)
            events = [line[5:] for line in text.split("\n") if line.startswith("data:")]
            return [_event_tensors(model, json.loads(event)) for event in events]
        body = {
            "inputs": [
                {
                    "name": name,
                    "datatype": model.inputs[name].datatype,
                    "shape": list(array.shape),
                    "data": array.ravel().tolist(),
                }
                for name, array in inputs.items()
            ]
        }
        reply = json.loads(self._post(f"/v2/models/{model.name}/infer", body))
        return [
            {
                output["name"]: np.array(output["data"], numpy_type(output["datatype"])).reshape(
                    output["shape"]
                )
                for output in reply["outputs"]
            }
        ]

    def _post(self, path: str, body: dict[str, Any]) -> str:
        limits = self._limits(self._timeouts.total_s)
        try:
            reply = self._http.post(path, json=body, timeout=limits)
        except httpx.HTTPError as error:
            raise as_error(error, self._url, self._timeouts, self._timeouts.total_s) from error
        if reply.status_code != httpx.codes.OK:
            raise refusal_of(reply)
        return reply.content.decode("utf-8")


def _event_tensors(model: ModelSpec, event: dict[str, Any]) -> Tensors:
    if "error" in event:
        raise refusal(str(event["error"]))
    return {
        name: np.array(
            value if isinstance(value, list) else [value], numpy_type(model.outputs[name].datatype)
        )
        for name, value in event.items()
        if name in model.outputs
    }


def _flat(values: Any) -> Any:
    """Convert values for ``generate_stream``: a list, or the value itself if there is one."""
    while isinstance(values, list) and len(values) == 1:
        values = values[0]
    return values
