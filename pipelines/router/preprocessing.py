"""Turns a request of a client into one for an engine: text to tokens, words to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.speculation.sampling.params import SamplingParams, draw_seed
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.prompt_tokenizer import PromptTokenizer
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind, check_words, cut_at_stop_word
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import CompletionRequest

QUICK_BYTES = 4096
"""Up to this size, tokenizing takes about a millisecond; 1 MB takes 400 ms."""

NUM_THREADS = 2
"""Threads for longer texts, in each process that tokenizes; the tokenizer releases Python's lock."""


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
            raise InvalidRequestError(f"the prompt is empty: {name} gives 0 tokens", "send a prompt")

    def check_ids(self, ids: Sequence[int] | npt.NDArray[np.int32], name: str) -> None:
        """Refuse ids outside the vocabulary; raises InvalidRequestError."""
        array = np.asarray(ids)
        if array.size and not 0 <= array.min() <= array.max() < self._num_tokens:
            raise InvalidRequestError(
                f"a token id is outside the vocabulary: {name} has ids from {array.min()} to {array.max()}, "
                f"not 0 to {self._num_tokens - 1}",
                "use the tokenizer with which the engine was built",
            )

    def _too_long(self, values: str) -> PromptTooLongError:
        return PromptTooLongError(
            f"the prompt is too long: {values}; max_seq_len={self._max_seq_len} limits prompt and output",
            "shorten the prompt, or serve with a larger max_seq_len",
        )


class Preprocessing:
    """Turns requests of clients into requests to engines.

    Attributes:
        tokenizer: See below.
        vocabulary: Vocabulary of the tokenizer.

    Args:
        tokenizer: The target's tokenizer.
        max_seq_len: Most tokens of prompt and output together.
    """

    def __init__(self, tokenizer: PromptTokenizer, max_seq_len: int) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer.vocabulary
        self._limits = PromptLimits(self.vocabulary, max_seq_len)

    def is_quick(self, request: CompletionRequest) -> bool:
        """Whether the calling thread can tokenize it: the text is short, and nothing must be loaded."""
        if request.parse_special_tokens and not self.tokenizer.can_parse:
            return False
        texts = (request.prompt, request.prediction, *request.stop_words, *request.bad_words)
        return sum(map(len, texts)) <= QUICK_BYTES

    def __call__(self, request: CompletionRequest) -> EngineRequest:
        """Return the request to an engine. Thread-safe.

        Raises:
            InvalidRequestError: The prompt is empty, one of its ids is no token, a stop word or bad word
                cannot be used, ``min_tokens`` exceeds ``max_tokens``, or an answer cannot be continued.
            PromptTooLongError: The prompt alone exceeds the engine's sequence length.
        """
        stop = self._words(request.stop_words, WordKind.STOP)
        bad_words = self._words(request.bad_words, WordKind.BAD)
        input_ids = self._prompt(request)
        _check_min_tokens(request.min_tokens, request.max_tokens)
        whole = EngineRequest(
            input_ids=input_ids,
            max_tokens=request.max_tokens,
            sampling=SamplingParams(
                temperature=float32(request.temperature),
                top_k=request.top_k,
                top_p=float32(request.top_p),
                min_p=float32(request.min_p),
                repetition_penalty=float32(request.repetition_penalty),
                presence_penalty=float32(request.presence_penalty),
                frequency_penalty=float32(request.frequency_penalty),
                min_tokens=request.min_tokens,
                logit_bias=tuple((token_id, float32(value)) for token_id, value in request.logit_bias),
                seed=draw_seed() if request.seed is None else request.seed,
            ),
            end_id=request.end_id,
            stop_token_ids=request.stop_token_ids,
            stop=stop,
            bad_words=bad_words,
            num_log_probs=request.num_log_probs,
            return_prompt_log_probs=request.return_prompt_log_probs,
            guide=request.guide,
            num_draft_tokens=request.num_draft_tokens,
            use_draft_logits=request.use_draft_logits,
            prediction_ids=self._prediction(request.prediction),
            session_id=request.session_id,
            cache_salt=request.cache_salt,
        )
        if not request.resume_output_ids:
            return whole
        self._limits.check_ids(request.resume_output_ids, "resume_output_ids")
        return resumed_by_client(whole, request.resume_output_ids, self.vocabulary)

    def _prompt(self, request: CompletionRequest) -> tuple[int, ...]:
        if len(request.prompt_ids):
            ids, name = tuple(request.prompt_ids), "input_ids"
            self._limits.check_ids(ids, name)
        else:
            name = "text_input"
            self._limits.check_bytes(len(request.prompt.encode()), name)
            ids = tuple(
                self.tokenizer.encode(
                    request.prompt,
                    add_special_tokens=request.add_special_tokens,
                    parse_special_tokens=request.parse_special_tokens,
                )
            )
        self._limits.check_not_empty(len(ids), name)
        self._limits.check_length(len(ids), name)
        return ids

    def _prediction(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prediction without those that begin a prompt."""
        self._limits.check_bytes(len(text.encode()), "prediction")
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False)) if text else ()
        self._limits.check_length(len(ids), "prediction")
        return ids

    def _words(self, texts: Sequence[str], kind: WordKind) -> tuple[bytes, ...]:
        words = tuple(text.encode() for text in texts)
        check_words(words, kind)
        for text in texts:
            if self.tokenizer.names_special_token(text):
                raise InvalidRequestError(
                    f"the {kind.one} {text.encode()!r} names a special token, which spells no bytes",
                    kind.remedy,
                )
        return words


def float32(value: float) -> float:
    """Return a number as KServe clients send it, so that every client of a request gets the same answer."""
    with np.errstate(over="ignore"):  # an engine refuses infinity
        return float(np.float32(value))


def resumed(request: EngineRequest, output_ids: Sequence[int]) -> EngineRequest:
    """Return the request for the rest of an answer.

    ``prompt_length`` separates prompt from output, so penalties, ``min_tokens``, words and noise are the same
    as in one uninterrupted answer.

    Args:
        request: The request for the whole answer.
        output_ids: The tokens that the client has.
    """
    prompt_length = len(request.input_ids) if request.prompt_length is None else request.prompt_length
    return replace(
        request,
        input_ids=(*request.input_ids, *output_ids),
        prompt_length=prompt_length,
        max_tokens=request.max_tokens - len(output_ids),
    )


def resumed_by_client(
    whole: EngineRequest, output_ids: Sequence[int], vocabulary: Vocabulary
) -> EngineRequest:
    """Return the request for the rest of an answer of which the client has the first tokens.

    A token depends on the prompt, the parameters, the seed and the output before it, so the rest of the
    answer is the same to the bit as without the interruption (``docs/explanation/architecture.md``).

    Args:
        whole: The request for the whole answer.
        output_ids: The tokens that the client has; in the vocabulary.
        vocabulary: Bytes of the tokens.

    Raises:
        InvalidRequestError: ``max_tokens`` leaves nothing to add, the output is complete, or it does not end
            with a whole chunk.
    """
    if len(output_ids) >= whole.max_tokens:
        raise InvalidRequestError(
            f"nothing is left of the answer: resume_output_ids has {len(output_ids)} tokens, and "
            f"max_tokens={whole.max_tokens} counts the whole answer",
            "raise max_tokens, or take the answer as complete",
        )
    min_tokens = max(0, whole.sampling.min_tokens)
    text = vocabulary.join(output_ids[min_tokens:])
    if cut_at_stop_word(text, whole.stop) != text:
        raise InvalidRequestError(
            f"the answer is complete: the {len(output_ids)} tokens of resume_output_ids contain a stop word",
            "take the answer as complete, or send the stop words with which it began",
        )
    boundary = ChunkBoundary(vocabulary, whole.stop, min_tokens)
    num_whole = len(boundary.release(output_ids, is_final=False))
    if num_whole < len(output_ids):
        raise InvalidRequestError(
            "resume_output_ids ends inside a character or a possible stop word, with the last "
            f"{len(output_ids) - num_whole} of {len(output_ids)} tokens",
            "leave these tokens out; the server generates them again",
        )
    return resumed(whole, output_ids)


def _check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    # Checked here because engines see single rounds, which ask for fewer tokens than the whole answer.
    if min_tokens > max_tokens > 0:
        raise InvalidRequestError(
            f"min_tokens={min_tokens} exceeds max_tokens={max_tokens}", "lower min_tokens or raise max_tokens"
        )
