"""The ends of ``ensemble``: ``preprocessing`` turns text into tokens, ``postprocessing`` one chunk into text.

Both are ensembles of a single step, the model ``ensemble_steps``, so that they share one process. Names of
tensors are those of NVIDIA's inflight_batcher_llm. ``Preprocessing`` checks and tokenizes, as it does for the
text model. The last step keeps nothing between two chunks: ``speculative`` sends only what can be spelled on
its own (``pipelines/text/chunk_boundary.py``), and where a stop word cuts it (``text_length``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from pipelines.router.preprocessing import NUM_THREADS
from pipelines.triton.backend.header import Header
from pipelines.triton.backend.model import TritonModel
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.wire.admission import OpenLimit
from pipelines.wire.answer import spell
from pipelines.wire.request import NOT_OF_ENSEMBLE, TEXT_INPUTS
from pipelines.wire.responder import Responder
from pipelines.wire.tensors import Inputs, text_tensor

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
_CHUNK = "TOKENS_BATCH"


class EnsembleSteps(TritonModel):
    """Answers Triton's requests: a text with its tokens, a chunk of tokens with its text.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read, or is not the one that the model was rendered for.
        RepositoryError: A setting is missing.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        # The parameters are the client's, who asks with the names of the text level.
        super().__init__(TritonWire(backend), _KNOWN, None)
        self._preprocess = parameters.preprocessing()
        self._open = OpenLimit(parameters.integer("max_batch_size") + parameters.integer("max_queue_size"))
        self._tokenizing = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    def close(self) -> None:
        """Cancel what waits and send the last responses."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _begin(self, header: Header, inputs: Inputs, responder: Responder, number: str) -> None:
        if _CHUNK in inputs:
            self._spell(inputs, responder)
        else:
            self._tokenize({_INPUTS[name]: array for name, array in inputs.items()}, responder)

    def _tokenize(self, inputs: Inputs, responder: Responder) -> None:
        place = ExitStack()
        place.enter_context(self._open.place())
        responder.at_end(place.close)
        if self._preprocess.is_quick(inputs):
            self._answer(inputs, responder)
        else:
            responder.follow(self._tokenizing.submit(self._answer, inputs, responder))

    def _answer(self, inputs: Inputs, responder: Responder) -> None:
        tensors = self._preprocess(inputs)
        responder.send({outer: tensors[inner] for inner, outer in _OUTPUTS.items()}, is_final=True)

    def _spell(self, inputs: Inputs, responder: Responder) -> None:
        chunk = {"output_ids": inputs[_CHUNK], "text_length": inputs["TEXT_LENGTH"]}
        text = spell(chunk, self._preprocess.vocabulary)
        responder.send({"OUTPUT": text_tensor(text)}, is_final=True)
