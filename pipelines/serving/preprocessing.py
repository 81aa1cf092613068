"""Text to token ids: the inputs of a request to an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.serving.inputs import Inputs, read_scalar
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.sampling_tensors import PASSED_ON
from pipelines.serving.triton_wire import scalar_tensor
from pipelines.serving.word_list import WordKind, check_words, pack_words
from pipelines.text.vocabulary import Vocabulary

_PASSED_ON = {**PASSED_ON, "arm": "arm"}  # which is for the router


class Preprocessing:
    """Turns the inputs of the text level into those of an engine.

    Args:
        parameters: The model's settings.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        from tokenizers import Tokenizer

        path = parameters.path("tokenizer_file")
        self._vocabulary = Vocabulary.from_file(path)
        self._tokenizer: Any = Tokenizer.from_file(str(path))
        self._max_seq_len = parameters.integer("max_seq_len")
        # A token spells at most so many bytes, so a longer text is too long before it is tokenized.
        longest = max(len(token_bytes) for token_bytes in self._vocabulary.bytes_of)
        self._max_prompt_bytes = self._max_seq_len * longest

    def __call__(self, inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
        """All tensors of a request to an engine, but ``streaming``.

        Raises:
            InvalidRequestError: The prompt is empty or no UTF-8, a stop word or bad word cannot be used,
                or ``min_tokens`` exceeds ``max_tokens``.
            PromptTooLongError: The prompt alone exceeds the engine.
        """
        text = _decode(inputs["text_input"].reshape(-1)[0], "text_input")
        if len(text) > self._max_prompt_bytes:
            raise self._too_long(f"{len(text)} characters")
        input_ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int32)
        if not input_ids.size:
            raise InvalidRequestError(
                "the prompt is empty",
                values=f"text_input={text!r} gives 0 tokens",
                limit="at least 1 token",
                remedy="send a prompt",
            )
        if input_ids.size >= self._max_seq_len:
            raise self._too_long(f"{input_ids.size} tokens")
        max_tokens = read_scalar(inputs, "max_tokens", int, 0)
        _check_min_tokens(read_scalar(inputs, "min_tokens", int, 0), max_tokens)
        return {
            "input_ids": input_ids,
            "input_lengths": scalar_tensor(input_ids.size, np.int32),
            "request_output_len": scalar_tensor(max_tokens, np.int32),
            **{kind.list_tensor: self._word_list(inputs, kind) for kind in WordKind},
            **{inner: inputs[outer] for outer, inner in _PASSED_ON.items() if outer in inputs},
        }

    def _word_list(self, inputs: Inputs, kind: WordKind) -> npt.NDArray[np.int32]:
        """The tensor int32 [1, 2, m] for the engines."""
        words = inputs[kind.text_tensor].reshape(-1).tolist() if kind.text_tensor in inputs else []
        check_words(words, kind)
        return pack_words([self._word_ids(word, kind) for word in words])[np.newaxis]

    def _word_ids(self, word: bytes, kind: WordKind) -> list[int]:
        ids: list[int] = self._tokenizer.encode(_decode(word, kind.text_tensor), add_special_tokens=False).ids
        if self._vocabulary.join(ids) != word:
            raise InvalidRequestError(
                f"a {kind.one} cannot be written in the model's tokens",
                values=f"{kind.one} {word!r}",
                limit="its tokens must spell its bytes; special tokens spell none",
                remedy=kind.remedy,
            )
        return ids

    def _too_long(self, values: str) -> PromptTooLongError:
        return PromptTooLongError(
            "the prompt is too long",
            values=f"text_input has {values}",
            limit=f"max_seq_len={self._max_seq_len} tokens, prompt and output together",
            remedy="shorten the prompt, or serve with a larger max_seq_len",
        )


def _check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    # Here and not at the engines: these are asked round by round, for fewer tokens than the whole has.
    if min_tokens > max_tokens > 0:
        raise InvalidRequestError(
            "min_tokens exceeds max_tokens",
            values=f"min_tokens={min_tokens}, max_tokens={max_tokens}",
            limit="at most max_tokens",
            remedy="lower min_tokens or raise max_tokens",
        )


def _decode(data: Any, tensor: str) -> str:
    if isinstance(data, str):
        return data
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{tensor} is not valid UTF-8",
            values=f"byte 0x{data[error.start]:02x} at position {error.start}",
            limit="text must be UTF-8",
            remedy="encode it as UTF-8",
        ) from None
