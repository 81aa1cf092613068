"""The model ``preprocessing``, first step of ``ensemble``: text to tokens.

Tensor names are those of NVIDIA's inflight_batcher_llm. ``Preprocessing`` checks and tokenizes, as it does
for ``generate``.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipelines.router.preprocessing import NUM_THREADS, TEXT_INPUTS
from pipelines.router.resumption import RESUME_INPUT
from pipelines.triton.backend.header import ServerKey, read_header
from pipelines.triton.backend.outbox import Outbox
from pipelines.triton.backend.outlet import TritonOutlet
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.triton.engine.model import CLOSE_TIMEOUT_S
from pipelines.wire.admission import OpenLimit
from pipelines.wire.responder import Responder, unique_number
from pipelines.wire.tensors import Inputs

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
# In Triton 2.51 a step behind a decoupled one may have no input of the ensemble itself. NVIDIA's tensors
# between the steps cannot say where the prompt ends.
_KNOWN = tuple(name for name in TEXT_INPUTS if name not in ("skip_special_tokens", RESUME_INPUT))
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
        self._tokenizing = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")
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
                self._open.enter()
                responder.at_end(self._open.leave)
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
