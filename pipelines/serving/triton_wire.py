"""Triton's Python backend, as far as serving uses it: tensors, responses, errors, calls to other models.

``triton_python_backend_utils`` exists only inside a model that Triton runs, so the models hand it in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerStartError,
    from_wire,
)

# Triton's codes for our errors; the first match counts. HTTP generate answers 400 whatever the code;
# KServe infer and gRPC carry it (UNAVAILABLE is HTTP 503).
_CODES: tuple[tuple[type[DraftproofError], str], ...] = (
    (InvalidRequestError, "INVALID_ARG"),
    (ServerBusyError, "UNAVAILABLE"),
    (RequestTimeoutError, "CANCELLED"),
    (RequestCancelledError, "CANCELLED"),
)


# Array and Triton's tensor by name.
SentTensors = dict[str, tuple[npt.NDArray[Any], Any]]


class TritonWire:
    """Makes and reads Triton's objects.

    Args:
        backend: The module ``triton_python_backend_utils``.

    Raises:
        ServerStartError: The installed numpy is one with which Triton's tensors arrive empty.
    """

    def __init__(self, backend: Any) -> None:
        if int(np.__version__.split(".")[0]) >= 2:
            raise ServerStartError(
                "this Triton cannot work with the installed numpy",
                values=f"numpy {np.__version__}",
                limit="numpy < 2: with a newer one tensors arrive with size 0",
                remedy="remove .venv and run make again",
            )
        self._pb = backend
        self._requests_in_use: set[Any] = set()
        self.final_flag: int = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def inputs(self, request: Any) -> dict[str, npt.NDArray[Any]]:
        """Tensors of a request by name."""
        return _copies(request.inputs())

    def response(self, outputs: Mapping[str, npt.NDArray[Any]], sent: SentTensors | None = None) -> Any:
        """A response that carries these tensors.

        Args:
            outputs: Arrays by name; they must not change afterwards if ``sent`` is given.
            sent: Tensors of earlier responses to the same request: one that has not changed is sent again,
                since each new tensor costs a piece of shared memory. Gets the new ones.
        """
        if sent is None:
            sent = {}
        for name, array in outputs.items():
            if name not in sent or not is_same(sent[name][0], array):
                sent[name] = array, self._pb.Tensor(name, array)
        return self._pb.InferenceResponse([sent[name][1] for name in outputs])

    def error_response(self, error: DraftproofError) -> Any:
        """A response that carries an error, from which ``errors.from_wire`` makes it again."""
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL")
        return self._pb.InferenceResponse(
            error=self._pb.TritonError(error.to_wire(), getattr(self._pb.TritonError, code))
        )

    async def call(
        self,
        model_name: str,
        inputs: Mapping[str, npt.NDArray[Any]],
        output_names: Iterable[str],
        *,
        request_id: str = "",
        timeout_us: int = 0,
    ) -> list[dict[str, npt.NDArray[Any]]]:
        """Ask another model of this server and gather its responses.

        One thread of the running loop's default executor is busy until the answer is there.

        Raises:
            DraftproofError: The error that the model answered, with its class.
            EngineFailedError: An error of Triton's own.
        """
        request = self._request(model_name, inputs, output_names, request_id, timeout_us)
        answer = asyncio.ensure_future(request.async_exec(decoupled=True))
        # Triton's thread uses the request without holding it. Were it freed with this frame, as when
        # this coroutine is cancelled, the process would crash: it lives as long as the answer is due.
        self._requests_in_use.add(request)
        answer.add_done_callback(lambda _: self._requests_in_use.discard(request))
        return self._gather(model_name, await asyncio.shield(answer))

    def _request(
        self,
        model_name: str,
        inputs: Mapping[str, npt.NDArray[Any]],
        output_names: Iterable[str],
        request_id: str,
        timeout_us: int,
    ) -> Any:
        return self._pb.InferenceRequest(
            model_name=model_name,
            request_id=request_id,
            timeout=timeout_us,
            requested_output_names=list(output_names),
            inputs=[self._pb.Tensor(name, array) for name, array in inputs.items()],
        )

    def _gather(self, model_name: str, responses: Iterable[Any]) -> list[dict[str, npt.NDArray[Any]]]:
        gathered = []
        for response in responses:
            if response.has_error():
                message = response.error().message()
                raise from_wire(message) or EngineFailedError(
                    f"model '{model_name}' could not be called",
                    values=message,
                    limit="an answer was expected",
                    remedy="the server's log has the cause",
                )
            tensors = response.output_tensors()
            if tensors:  # a response without any only says that the answer is complete
                gathered.append(_copies(tensors))
        return gathered


def is_same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two tensors have the same shape and the same bytes."""
    if one.dtype == np.object_:  # whose bytes are addresses
        return bool(one.tolist() == other.tolist())
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _copies(tensors: Iterable[Any]) -> dict[str, npt.NDArray[Any]]:
    # The arrays are views of shared memory that Triton takes back with the request.
    return {tensor.name(): np.array(tensor.as_numpy()) for tensor in tensors}


def text_tensor(text: bytes | str) -> npt.NDArray[np.object_]:
    """One string as BYTES [1, 1]."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return np.array([[data]], dtype=np.object_)


def scalar_tensor(value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """One number as [1, 1]."""
    return np.array([[value]], dtype=dtype)
