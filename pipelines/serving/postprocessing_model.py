"""``postprocessing``: token ids to text, chunk by chunk without any memory of earlier chunks.

The engines end chunks where the text can be cut and say how many bytes of it count, so the texts of the
chunks join to the text of the whole.

It also tells the engine when a client has gone: Triton passes the cancellation of an ensemble's request
on only to steps that begin afterwards, and in mid-stream this is the only step that does.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import numpy as np

from pipelines.errors import DraftproofError, RequestCancelledError
from pipelines.serving.inputs import Inputs
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.responder import internal_error
from pipelines.serving.stop_request import stop_tensors
from pipelines.serving.triton_wire import TritonWire, text_tensor
from pipelines.text.chunk_boundary import decode_chunk
from pipelines.text.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)

NUM_REMEMBERED = 1024  # requests already stopped; more chunks of them are on their way


def decode(inputs: Inputs, vocabulary: Vocabulary) -> str:
    """Text of one chunk: ``output_ids``, cut to ``text_length`` bytes where that is given."""
    text = vocabulary.join(inputs["output_ids"].reshape(-1).tolist())
    if "text_length" in inputs:
        text = text[: int(inputs["text_length"].reshape(-1)[0])]
    return decode_chunk(text)


class PostprocessingModel:
    """Answers Triton's requests.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        self._wire = TritonWire(backend)
        self._vocabulary = Vocabulary.from_file(parameters.path("tokenizer_file"))
        self._stopped: OrderedDict[str, None] = OrderedDict()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = self._wire.inputs(request)
            if request.is_cancelled():
                self._stop_engine(inputs)
                raise RequestCancelledError(
                    "the request was cancelled",
                    values=f"request {request.request_id()}",
                    limit="the client went away",
                    remedy="send it again if the answer is still wanted",
                )
            return self._wire.response({"text_output": text_tensor(decode(inputs, self._vocabulary))})
        except DraftproofError as error:
            return self._wire.error_response(error)
        except Exception:
            _LOG.exception("request %s could not be turned into text", request.request_id())
            return self._wire.error_response(internal_error(request.request_id()))

    def _stop_engine(self, inputs: Inputs) -> None:
        handle = inputs.get("request_handle", np.array([b""], dtype=np.object_)).reshape(-1)[0].decode()
        if not handle or handle in self._stopped:
            return
        self._stopped[handle] = None
        if len(self._stopped) > NUM_REMEMBERED:
            self._stopped.popitem(last=False)
        model_name, _, request_id = handle.partition("/")
        self._wire.call_blocking(model_name, stop_tensors(), ["output_ids"], request_id=request_id)
