"""The ends of ``ensemble``: ``preprocessing`` turns text into tokens, ``postprocessing`` one chunk into text.

Tensor names are those of NVIDIA's inflight_batcher_llm. ``Preprocessing`` checks and tokenizes, as it does
for the text model. The last step keeps nothing between two chunks: ``speculative`` sends only what can be
spelled on its own (``pipelines/text/chunk_boundary.py``), and where a stop word cuts it (``text_length``).
"""

from __future__ import annotations

import gc
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from pipelines.errors import DraftproofError
from pipelines.manifest import read_checked
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.header import ServerKey, read_header
from pipelines.triton.backend.outbox import Outbox
from pipelines.triton.backend.outlet import TritonOutlet
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.triton.engine.model import CLOSE_TIMEOUT_S
from pipelines.wire.admission import OpenLimit
from pipelines.wire.answer import spell
from pipelines.wire.request import NOT_OF_ENSEMBLE, TEXT_INPUTS
from pipelines.wire.responder import Responder, internal_error, unique_number
from pipelines.wire.tensors import Inputs, text_tensor

_LOG = logging.getLogger(__name__)
_NUM_THREADS = 2  # for long texts; the tokenizer releases Python's lock

# Name here -> name at the text level.
_INPUTS = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "STOP_WORDS_DICT": "stop_words",
    "BAD_WORDS_DICT": "bad_words",
    "MIN_TOKENS": "min_tokens",
    "INPUT_IDS": "input_ids",
    "ADD_SPECIAL_TOKENS": "add_special_tokens",
    "PARSE_SPECIAL_TOKENS": "parse_special_tokens",
}
_KNOWN = tuple(name for name in TEXT_INPUTS if name not in NOT_OF_ENSEMBLE)
# Name at an engine -> name here.
_OUTPUTS = {
    "input_ids": "INPUT_ID",
    "input_lengths": "REQUEST_INPUT_LEN",
    "request_output_len": "REQUEST_OUTPUT_LEN",
    "stop_words_list": "STOP_WORDS_IDS",
    "bad_words_list": "BAD_WORDS_IDS",
}


class PreprocessingModel:
    """Answers Triton's requests.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
        RepositoryError: A setting is missing.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        self._preprocess = parameters.preprocessing()
        self._wire = TritonWire(backend)
        self._outbox = Outbox()
        self._open = OpenLimit(parameters.integer("max_batch_size") + parameters.integer("max_queue_size"))
        self._tokenizing = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenize")
        self._key = ServerKey()

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; returns at once, the answers follow."""
        for request in requests:
            number = unique_number()
            responder = Responder(TritonOutlet(self._wire, request, self._outbox, number), number)
            try:
                # The parameters are the client's, who asks with the names of the text level.
                if read_header(request, _KNOWN, self._key).is_ping:
                    responder.send({}, is_final=True)
                    continue
                place = ExitStack()
                place.enter_context(self._open.place())
                responder.at_end(place.close)
                inputs = {_INPUTS[name]: array for name, array in self._wire.inputs(request).items()}
                if self._preprocess.is_quick(inputs):
                    self._answer(inputs, responder)
                else:
                    responder.follow(self._tokenizing.submit(self._answer, inputs, responder))
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what waits and send the last responses."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later

    def _answer(self, inputs: Inputs, responder: Responder) -> None:
        tensors = self._preprocess(inputs)
        responder.send({outer: tensors[inner] for inner, outer in _OUTPUTS.items()}, is_final=True)


class PostprocessingModel:
    """Answers Triton's requests.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read, or is not the one that the model was rendered for.
        RepositoryError: A setting is missing.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        path = parameters.path("tokenizer_file")
        content = read_checked(path, parameters.text("tokenizer_sha256"))
        self._vocabulary = Vocabulary.parse(content, path)
        self._wire = TritonWire(backend)
        self._key = ServerKey()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests from Triton, one chunk each."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            if self._key.check(json.loads(request.parameters() or "{}")):
                return self._wire.response({})
            inputs = self._wire.inputs(request)
            outputs = {"output_ids": inputs["TOKENS_BATCH"], "text_length": inputs["TEXT_LENGTH"]}
            return self._wire.response({"OUTPUT": text_tensor(spell(outputs, self._vocabulary))})
        except DraftproofError as error:
            return self._wire.error_response(error)
        except Exception:
            number = unique_number()
            _LOG.exception("request %s failed", number)
            return self._wire.error_response(internal_error(number))
