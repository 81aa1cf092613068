"""The ends of ``ensemble``: ``preprocessing`` turns text into tokens, ``postprocessing`` one chunk into text.

Both are ensembles of a single step, the model ``ensemble_steps``, so that they share one process. Names of
tensors are those of NVIDIA's inflight_batcher_llm. ``Preprocessing`` checks and tokenizes, as it does for the
text model. The last step keeps nothing between two chunks: ``speculative`` sends only what can be spelled on
its own (``pipelines/text/chunk_boundary.py``), and where a stop word cuts it (``text_length``).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.router.preprocessing import NUM_THREADS, Preprocessing
from pipelines.text.chunk_boundary import decode_chunk
from pipelines.triton.backend.header import Header
from pipelines.triton.backend.inputs import Inputs, completion_request
from pipelines.triton.backend.model import TritonModel
from pipelines.triton.backend.outputs import Tensors, scalar_tensor, text_tensor
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.word_list import pack_words
from pipelines.wire.fields import TEXT_INPUTS
from pipelines.wire.request import CompletionRequest
from pipelines.wire.responder import Responder

_KNOWN = tuple(name for name, each in TEXT_INPUTS.items() if each.in_ensemble)
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
        super().__init__(backend, _KNOWN, None)
        self._preprocess = parameters.preprocessing()
        self._tokenizing = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    def close(self) -> None:
        """Cancel what waits and send the last responses."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _begin(self, header: Header, inputs: Inputs, responder: Responder[Tensors], number: str) -> None:
        if _CHUNK in inputs:
            self._spell(inputs, responder)
        else:
            self._tokenize(completion_request(inputs), responder)

    def _tokenize(self, request: CompletionRequest, responder: Responder[Tensors]) -> None:
        if self._preprocess.is_quick(request):
            self._answer(request, responder)
            return
        # The gateway limits how many may wait.
        responder.follow(self._tokenizing.submit(self._answer, request, responder))

    def _answer(self, request: CompletionRequest, responder: Responder[Tensors]) -> None:
        asked = self._preprocess(request)
        outputs = {
            "INPUT_ID": np.array([asked.input_ids], np.int32),
            "REQUEST_INPUT_LEN": scalar_tensor(len(asked.input_ids), np.int32),
            "REQUEST_OUTPUT_LEN": scalar_tensor(asked.max_tokens, np.int32),
            "STOP_WORDS_IDS": self._word_list(asked.stop),
            "BAD_WORDS_IDS": self._word_list(asked.bad_words),
        }
        responder.send(outputs, is_final=True)

    def _word_list(self, words: Sequence[bytes]) -> npt.NDArray[np.int32]:
        """Return words as tokens, int32 [1, 2, m]."""
        return pack_words([word_ids(word, self._preprocess) for word in words])[np.newaxis]

    def _spell(self, inputs: Inputs, responder: Responder[Tensors]) -> None:
        ids = inputs[_CHUNK].reshape(-1).tolist()
        text = self._preprocess.vocabulary.join(ids)[: int(inputs["TEXT_LENGTH"].item())]
        responder.send({"OUTPUT": text_tensor(decode_chunk(text))}, is_final=True)


def word_ids(word: bytes, preprocess: Preprocessing) -> list[int]:
    """Return tokens whose bytes are a word."""
    ids = preprocess.tokenizer.encode(word.decode(), add_special_tokens=False)
    if preprocess.vocabulary.join(ids) == word:
        return ids
    # SentencePiece's tokenizers write a space before every text; engines compare only bytes.
    return preprocess.vocabulary.spell(word)
