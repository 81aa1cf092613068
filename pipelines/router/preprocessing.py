"""Tokenizes requests: turns inputs of a text model into inputs of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.prompt_tokenizer import PromptTokenizer
from pipelines.text.stop_words import cut_at_stop_word
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.engine_request import check_bias
from pipelines.wire.request import PASSED_ON, TEXT_INPUTS
from pipelines.wire.tensors import (
    Inputs,
    check_one_value,
    decode_utf8,
    read_id,
    read_scalar,
    read_token_ids,
    scalar_tensor,
    without_batch,
)
from pipelines.wire.word_list import WordKind, check_words, pack_words

QUICK_BYTES = 4096
"""Up to this size, tokenizing takes about a millisecond; 1 MB takes 400 ms."""

NUM_THREADS = 2
"""Threads for longer texts, in each process that tokenizes; the tokenizer releases Python's lock."""

_RESUME_INPUT = "resume_output_ids"
_PREDICTION = "prediction"
_OF_TEXT = ("add_special_tokens", "parse_special_tokens")

_IDS = ("session_id", "arm")


class PromptLimits:
    """Refuses prompts that no engine of a model could answer. ``name`` is what the client calls the prompt.

    Args:
        vocabulary: Bytes of the tokens.
        max_seq_len: Most tokens of prompt and output together.
    """

    def __init__(self, vocabulary: Vocabulary, max_seq_len: int) -> None:
        self._num_tokens = vocabulary.size
        self._max_seq_len = max_seq_len
        # With the longest token this bounds the number of tokens, so longer texts need not be tokenized.
        longest = max(map(len, (*vocabulary.bytes_of, *vocabulary.special.values())))
        self._max_bytes = max_seq_len * longest

    def check_bytes(self, num_bytes: int, name: str) -> None:
        """Refuse a text that must have too many tokens, before it is tokenized.

        Raises:
            PromptTooLongError: Its tokens would be too many even if all were the longest.
        """
        if num_bytes > self._max_bytes:
            raise self._too_long(f"{name} has {num_bytes} bytes")

    def check_length(self, num_tokens: int, name: str) -> None:
        """Refuse a prompt that leaves no room for an answer.

        Raises:
            PromptTooLongError: It has ``max_seq_len`` tokens or more.
        """
        if num_tokens >= self._max_seq_len:
            raise self._too_long(f"{name} has {num_tokens} tokens")

    def check_not_empty(self, num_tokens: int, name: str) -> None:
        """Refuse a prompt without tokens; raises InvalidRequestError."""
        if not num_tokens:
            raise InvalidRequestError(
                "the prompt is empty",
                values=f"{name} gives 0 tokens",
                limit="at least 1 token",
                remedy="send a prompt",
            )

    def check_ids(self, ids: Sequence[int] | npt.NDArray[np.int32], name: str) -> None:
        """Refuse ids outside the vocabulary; raises InvalidRequestError."""
        array = np.asarray(ids)
        if array.size and not 0 <= array.min() <= array.max() < self._num_tokens:
            raise InvalidRequestError(
                "a token id is outside the vocabulary",
                values=f"{name} has ids from {array.min()} to {array.max()}",
                limit=f"0 to {self._num_tokens - 1}",
                remedy="use the tokenizer with which the engine was built",
            )

    def _too_long(self, values: str) -> PromptTooLongError:
        return PromptTooLongError(
            "the prompt is too long",
            values=values,
            limit=f"max_seq_len={self._max_seq_len} tokens, prompt and output together",
            remedy="shorten the prompt, or serve with a larger max_seq_len",
        )


class Preprocessing:
    """Turns inputs of a text model into inputs of an engine.

    Attributes:
        vocabulary: Vocabulary of the tokenizer.

    Args:
        tokenizer: The target's tokenizer.
        max_seq_len: Most tokens of prompt and output together.
    """

    def __init__(self, tokenizer: PromptTokenizer, max_seq_len: int) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = tokenizer.vocabulary
        self._limits = PromptLimits(self.vocabulary, max_seq_len)

    def is_quick(self, inputs: Inputs) -> bool:
        """Whether the calling thread can tokenize it: the text is short, and nothing must be loaded."""
        if "parse_special_tokens" in inputs and not self._tokenizer.can_parse:
            return False
        names = ("text_input", _PREDICTION, *(kind.value for kind in WordKind))
        texts = [text for name in names if name in inputs for text in inputs[name].reshape(-1).tolist()]
        return sum(map(len, texts)) <= QUICK_BYTES

    def __call__(self, inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
        """Return all tensors of a request to an engine except ``streaming``. Thread-safe.

        Raises:
            InvalidRequestError: There is no prompt, two, or an empty one, its text is not UTF-8 or one of its
                ids no token, a stop word or bad word cannot be used, ``min_tokens`` exceeds ``max_tokens``,
                an answer cannot be continued, or an input is invalid.
            PromptTooLongError: The prompt alone exceeds the engine's sequence length.
        """
        self._check(inputs)
        source = _source_of_prompt(inputs)
        input_ids = self._given_ids(inputs) if source == "input_ids" else self._encode(inputs)
        self._limits.check_not_empty(input_ids.size, source)
        self._limits.check_length(input_ids.size, source)
        max_tokens = read_scalar(inputs, "max_tokens", int, 0)
        _check_min_tokens(read_scalar(inputs, "min_tokens", int, 0), max_tokens)
        whole = {
            "input_ids": input_ids,
            "input_lengths": scalar_tensor(input_ids.size, np.int32),
            "request_output_len": scalar_tensor(max_tokens, np.int32),
            **{kind.list_tensor: self._word_list(inputs, kind) for kind in WordKind},
            **{inner: inputs[outer] for outer, inner in PASSED_ON.items() if outer in inputs},
        }
        if _PREDICTION in inputs:
            whole["prediction_ids"] = self._prediction_ids(inputs)
        if _RESUME_INPUT not in inputs:
            return whole
        return _resumed(whole, self._tokens(inputs, _RESUME_INPUT), inputs, self.vocabulary)

    def _encode(self, inputs: Inputs) -> npt.NDArray[np.int32]:
        """Return the tokens of ``text_input``, int32 [1, n]."""
        text = decode_utf8(read_scalar(inputs, "text_input", bytes, b""), "text_input")
        ids = self._tokenizer.encode(
            text,
            add_special_tokens=read_scalar(inputs, "add_special_tokens", bool, True),
            parse_special_tokens=read_scalar(inputs, "parse_special_tokens", bool, False),
        )
        return np.array([ids], dtype=np.int32)

    def _prediction_ids(self, inputs: Inputs) -> npt.NDArray[np.int32]:
        """Return the tokens of ``prediction``, int32 [1, n], without those that begin a prompt."""
        text = decode_utf8(read_scalar(inputs, _PREDICTION, bytes, b""), _PREDICTION)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        self._limits.check_length(len(ids), _PREDICTION)
        return np.array([ids], dtype=np.int32)

    def _given_ids(self, inputs: Inputs) -> npt.NDArray[np.int32]:
        """Return ``input_ids`` after checking them, int32 [1, n]."""
        unused = [name for name in _OF_TEXT if name in inputs]
        if unused:
            raise InvalidRequestError(
                f"{unused[0]} has no meaning for token ids",
                values=f"{', '.join(unused)} with input_ids",
                limit="only text is tokenized; ids are used as they are",
                remedy=f"leave {unused[0]} out, or send text_input",
            )
        return self._tokens(inputs, "input_ids")[np.newaxis]

    def _tokens(self, inputs: Inputs, name: str) -> TokenIds:
        """Return a tensor of tokens after checking them, int32 [n]."""
        without_batch(inputs, name)
        ids = read_token_ids(inputs, name)
        self._limits.check_ids(ids, name)
        return ids

    def _check(self, inputs: Inputs) -> None:
        """Check everything that can be checked without the tokenizer."""
        for name in ("text_input", _PREDICTION):
            self._limits.check_bytes(len(read_scalar(inputs, name, bytes, b"")), name)
        for kind in WordKind:
            check_words(_words(inputs, kind), kind)
        for name in _IDS:
            read_id(inputs, name)
        for name in PASSED_ON.keys() & inputs.keys():
            if not TEXT_INPUTS[name].is_list:
                check_one_value(inputs, name)
        check_bias(inputs)

    def _word_list(self, inputs: Inputs, kind: WordKind) -> npt.NDArray[np.int32]:
        """Return the tensor int32 [1, 2, m] for the engines."""
        return pack_words([self._word_ids(word, kind) for word in _words(inputs, kind)])[np.newaxis]

    def _word_ids(self, word: bytes, kind: WordKind) -> list[int]:
        text = decode_utf8(word, kind.value)
        ids: list[int] = []
        if not self._tokenizer.names_special_token(text):
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if self.vocabulary.join(ids) != word:
                # SentencePiece's tokenizers write a space before every text; engines compare only bytes.
                ids = self.vocabulary.spell(word)
        if not ids:
            raise InvalidRequestError(
                f"a {kind.one} cannot be expressed in the model's tokens",
                values=f"{kind.one} {word!r}",
                limit="its tokens must spell its bytes; special tokens spell none",
                remedy=kind.remedy,
            )
        return ids


def _source_of_prompt(inputs: Inputs) -> str:
    """Return the name of the tensor with the prompt: ``text_input`` or ``input_ids``."""
    given = [name for name in ("text_input", "input_ids") if name in inputs]
    if len(given) != 1:
        raise InvalidRequestError(
            "a request has one prompt, as text or as token ids",
            values=" and ".join(given) or "neither text_input nor input_ids",
            limit="exactly one of text_input and input_ids",
            remedy="send only one of them" if given else "send text_input with a text",
        )
    return given[0]


def _words(inputs: Inputs, kind: WordKind) -> list[bytes]:
    words: list[bytes] = inputs[kind.value].reshape(-1).tolist() if kind.value in inputs else []
    return words


def _check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    # Checked here because engines see single rounds, which ask for fewer tokens than the whole answer.
    if min_tokens > max_tokens > 0:
        raise InvalidRequestError(
            "min_tokens exceeds max_tokens",
            values=f"min_tokens={min_tokens}, max_tokens={max_tokens}",
            limit="at most max_tokens",
            remedy="lower min_tokens or raise max_tokens",
        )


def _resumed(
    whole: Mapping[str, npt.NDArray[Any]], output_ids: TokenIds, inputs: Inputs, vocabulary: Vocabulary
) -> dict[str, npt.NDArray[Any]]:
    """Return the request for the rest of an answer of which the client has the first tokens.

    A token depends on the prompt, the parameters, the seed and the output before it, so the rest of the
    answer is the same to the bit as without the interruption (``docs/decisions/failover.md``).

    Args:
        whole: The request for the whole answer, to an engine.
        output_ids: int32 [n], the tokens that the client has; in the vocabulary.
        inputs: The same request as the client sent it.
        vocabulary: Bytes of the tokens.

    Raises:
        InvalidRequestError: ``max_tokens`` leaves nothing to add, the output is complete, or it does not end
            with a whole chunk.
    """
    max_tokens = read_scalar(whole, "request_output_len", int, 0)
    if len(output_ids) >= max_tokens:
        raise InvalidRequestError(
            "nothing is left of the answer",
            values=f"{_RESUME_INPUT} has {len(output_ids)} tokens, max_tokens={max_tokens}",
            limit="fewer than max_tokens, which counts the whole answer",
            remedy="raise max_tokens, or take the answer as complete",
        )
    stop_words: list[bytes] = inputs["stop_words"].reshape(-1).tolist() if "stop_words" in inputs else []
    _check_place(output_ids, stop_words, read_scalar(inputs, "min_tokens", int, 0), vocabulary)
    prompt_ids = whole["input_ids"]
    return {
        **whole,
        "input_ids": np.concatenate((prompt_ids, output_ids[np.newaxis]), axis=1),
        "input_lengths": scalar_tensor(prompt_ids.size + len(output_ids), np.int32),
        "prompt_length": scalar_tensor(prompt_ids.size, np.int32),
        "request_output_len": scalar_tensor(max_tokens - len(output_ids), np.int32),
    }


def _check_place(
    output_ids: TokenIds, stop_words: list[bytes], min_tokens: int, vocabulary: Vocabulary
) -> None:
    """Refuse an output after which the rest of the text could not be sent as it would have been."""
    text = vocabulary.join(output_ids[max(0, min_tokens) :].tolist())
    if cut_at_stop_word(text, stop_words) != text:
        raise InvalidRequestError(
            "the answer is complete: it contains a stop word",
            values=f"{_RESUME_INPUT} has {len(output_ids)} tokens",
            limit="an answer ends at its first stop word",
            remedy="take the answer as complete, or send the stop words with which it began",
        )
    boundary = ChunkBoundary(vocabulary, stop_words, max(0, min_tokens))
    num_whole = len(boundary.release(output_ids.tolist(), is_final=False))
    if num_whole < len(output_ids):
        raise InvalidRequestError(
            f"{_RESUME_INPUT} ends inside a character or a possible stop word",
            values=f"the last {len(output_ids) - num_whole} of {len(output_ids)} tokens",
            limit="the tokens of whole chunks, whose text the client has",
            remedy="leave these tokens out; the server generates them again",
        )
