"""Converts tensors, responses and errors to and from the objects of Triton's Python backend.

``triton_python_backend_utils`` exists only inside a model that Triton runs, so the models pass it in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerStartError,
)
from pipelines.triton.backend.tensors import is_same

# Triton's codes for our errors; the first match counts. HTTP generate always answers 400; KServe infer and
# gRPC return the code (UNAVAILABLE is HTTP 503).
_CODES: tuple[tuple[type[DraftproofError], str], ...] = (
    (InvalidRequestError, "INVALID_ARG"),
    (ServerBusyError, "UNAVAILABLE"),
    (RequestTimeoutError, "CANCELLED"),
    (RequestCancelledError, "CANCELLED"),
)


SentTensors = dict[str, tuple[npt.NDArray[Any], Any]]
"""Array and Triton's tensor by name."""


class TritonWire:
    """Creates and reads Triton's objects.

    Args:
        backend: The module ``triton_python_backend_utils``.

    Raises:
        ServerStartError: The installed numpy is incompatible with this Triton.
    """

    def __init__(self, backend: Any) -> None:
        if int(np.__version__.split(".")[0]) >= 2:
            raise ServerStartError(
                "this Triton cannot work with the installed numpy",
                values=f"numpy {np.__version__}",
                limit="numpy < 2: with newer versions, tensors arrive empty",
                remedy="delete .venv and run make again",
            )
        self._pb = backend
        self.final_flag: int = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def inputs(self, request: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of a request by name."""
        return _copies(request.inputs())

    def response(self, outputs: Mapping[str, npt.NDArray[Any]], sent: SentTensors | None = None) -> Any:
        """Create a response.

        Args:
            outputs: Arrays by name; they must not change afterwards if ``sent`` is given.
            sent: Tensors of earlier responses to the same request; updated. Unchanged ones are reused,
                because each new tensor costs a piece of shared memory.
        """
        if sent is None:
            sent = {}
        for name, array in outputs.items():
            if name not in sent or not is_same(sent[name][0], array):
                sent[name] = array, self._pb.Tensor(name, array)
        return self._pb.InferenceResponse([sent[name][1] for name in outputs])

    def error_response(self, error: DraftproofError) -> Any:
        """Create an error response that ``errors.from_wire`` can read."""
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL")
        return self._pb.InferenceResponse(
            error=self._pb.TritonError(error.to_wire(), getattr(self._pb.TritonError, code))
        )


def _copies(tensors: Iterable[Any]) -> dict[str, npt.NDArray[Any]]:
    # The arrays are views of shared memory that Triton frees with the request.
    return {tensor.name(): np.array(tensor.as_numpy()) for tensor in tensors}
