"""The model ``postprocessing``, last step of ``ensemble``: the tokens of one chunk to text.

It keeps nothing between two chunks: ``speculative`` sends only what can be spelled on its own
(``pipelines/text/chunk_boundary.py``) and says where a stop word cuts it (``text_length``).
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pipelines.errors import DraftproofError
from pipelines.manifest import read_checked
from pipelines.router.outputs import spell
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.header import ServerKey
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.wire.responder import internal_error, unique_number
from pipelines.wire.tensors import text_tensor

_LOG = logging.getLogger(__name__)


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
