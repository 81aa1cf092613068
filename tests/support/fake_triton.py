"""Stand-ins for ``triton_python_backend_utils`` and for what Triton passes to a model."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

FINAL = 1
SERVER_KEY = "the key of the tests' server"


class FakeTensor:
    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        self._name = name
        self._array = array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> npt.NDArray[Any]:
        return self._array


class FakeTritonError(Exception):
    UNKNOWN, INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = range(5)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self._code = code

    def message(self) -> str:
        return str(self)

    def code(self) -> int:
        return self._code


class FakeResponse:
    def __init__(
        self, output_tensors: list[FakeTensor] | None = None, error: FakeTritonError | None = None
    ) -> None:
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error


class FakeSender:
    """A sender that records responses; ``wait`` returns once the final one is there."""

    def __init__(self) -> None:
        self.sent: list[tuple[FakeResponse | None, int]] = []
        self.cancelled = False
        self.broken_sends = 0
        self._final = threading.Event()

    def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
        assert not self._final.is_set(), "a response after the last one"
        if self.broken_sends:
            self.broken_sends -= 1
            raise RuntimeError("shared memory is full")
        self.sent.append((response, flags))
        if flags & FINAL:
            self._final.set()

    def is_cancelled(self) -> bool:
        assert not self._final.is_set(), "Triton has freed the request"
        return self.cancelled

    def wait(self, timeout_s: float = 120.0) -> list[FakeResponse | None]:
        assert self._final.wait(timeout_s), "the client would wait for ever"
        assert sum(flags & FINAL for _, flags in self.sent) == 1
        return [response for response, _ in self.sent]

    @property
    def error(self) -> FakeTritonError:
        response = self.wait()[-1]
        assert response is not None
        assert response.error is not None, "an answer where an error was expected"
        return response.error


class FakeRequest:
    def __init__(
        self,
        tensors: dict[str, npt.NDArray[Any]],
        request_id: str = "",
        parameters: str = "",
        requested: tuple[str, ...] = ("output_ids",),
        timeout_us: int = 0,
    ) -> None:
        self.sender = FakeSender()
        self._requested = requested
        self._tensors = [FakeTensor(name, array) for name, array in tensors.items()]
        self._request_id = request_id
        self._parameters = parameters
        self._timeout_us = timeout_us

    def inputs(self) -> list[FakeTensor]:
        return self._tensors

    def request_id(self) -> str:
        return self._request_id

    def requested_output_names(self) -> list[str]:
        return list(self._requested)

    def parameters(self) -> str:
        """Return parameters as the gateway forwards them, with the server's key."""
        given = json.loads(self._parameters or "{}")
        return json.dumps({"draftproof_key": SERVER_KEY, **given})

    def timeout(self) -> int:
        return self._timeout_us

    def get_response_sender(self) -> FakeSender:
        return self.sender

    def is_cancelled(self) -> bool:
        return self.sender.cancelled


class FakeMetricFamily:
    """Takes metrics and forgets them."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, **_: Any) -> None:
        pass

    def Metric(self, **_: Any) -> Any:
        return SimpleNamespace(set=_ignore, increment=_ignore, observe=_ignore)


def _ignore(value: float) -> None:
    pass


def fake_backend() -> Any:
    """Return the module, as far as serving uses it."""
    return SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Tensor=FakeTensor,
        InferenceResponse=FakeResponse,
        TritonError=FakeTritonError,
        MetricFamily=FakeMetricFamily,
    )


def engine_tensors(input_ids: list[int], max_tokens: int, **others: Any) -> dict[str, npt.NDArray[Any]]:
    """Return inputs of ``draft``, ``target`` or ``speculative``."""
    reals = ("temperature", "runtime_top_p", "min_p", "logit_bias_values")
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    dtypes: dict[str, Any] = {**dict.fromkeys((*reals, *penalties), np.float32), "seed": np.uint64}
    flags = {"streaming", "return_log_probs", "use_draft_logits"}
    tensors: dict[str, npt.NDArray[Any]] = {
        "input_ids": np.array([input_ids], dtype=np.int32),
        "input_lengths": np.array([[len(input_ids)]], dtype=np.int32),
        "request_output_len": np.array([[max_tokens]], dtype=np.int32),
    }
    for name, value in others.items():
        dtype = np.bool_ if name in flags else dtypes.get(name, np.int32)
        array = np.array(value, dtype=dtype)
        tensors[name] = array.reshape(1, -1) if array.ndim < 2 else array[np.newaxis]
    return tensors
