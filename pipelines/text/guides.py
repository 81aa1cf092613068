"""Compiles the guides of requests to grammars.

llguidance parses the grammars and computes the masks. It may write a forced text, such as a key of a JSON
schema, only in the tokens with which the tokenizer would write it; so it gets our tokenizer, and without one
its masks would be wrong.

Source: llguidance 1.9, https://github.com/guidance-ai/llguidance.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.text.grammar import RequestGrammar, is_used_up, mask_of
from pipelines.text.guide_trial import (
    MAX_LEXER_STATES,
    MOST_FORCED_CHARACTERS,
    NICENESS,
    grammar_of,
    limits_of,
)
from pipelines.text.guide_trials import Tokens, wrong_guide
from pipelines.text.vocabulary import Vocabulary

_Result = TypeVar("_Result")

GUIDE_TYPES = {
    "json": "json_schema",
    "json_schema": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "ebnf_grammar": "grammar",
    "lark_grammar": "lark",
}
"""Types of guides: TensorRT-LLM's names, ``choice`` and ``lark_grammar``, with llguidance's names."""

MAX_GUIDE_BYTES = 1 << 18
MAX_EBNF_BYTES = 1 << 12
"""llguidance converts these grammars in Python, in time that grows with the square of their length."""

_MOST_SHARED_STATES = 10_000
_BYTES_PER_STATE = 3_000  # 800 to 2,800 were measured
_BYTES_PER_CHARACTER = 100  # of a compiled guide
_MOST_REMEMBERED_BYTES = 1 << 29
_STACK_BYTES = 64 << 20
"""What passed a trial on a small stack must not overflow this one."""

_stack_size = threading.Lock()  # it is one for all new threads


@dataclass(frozen=True)
class Guide:
    """A grammar as a request has it.

    Attributes:
        kind: One of ``GUIDE_TYPES``.
        text: The JSON schema, regular expression, JSON list of choices, or grammar; "" with ``json``, which
            allows every JSON object.
    """

    kind: str
    text: str


class GrammarCompiler:
    """Compiles the guides of requests for one vocabulary. Thread-safe.

    Args:
        vocabulary: Bytes of the tokens.
        vocab_size: Logits per position, at least as many as tokens.
        load_encode: Loads the tokenizer and returns a function that turns text into tokens, without special
            tokens.
    """

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, load_encode: Callable[[], Callable[[str], list[int]]]
    ) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._load_encode = load_encode
        self._matchers: OrderedDict[Guide, Any] = OrderedDict()
        self._lock = threading.Lock()

    def load(self) -> None:
        """Load what the first guide would load, which holds up other threads for a second."""
        _ = self._tokenizer

    def tokens(self) -> Tokens:
        """Return the vocabulary for trials."""
        tokens = _Tokens(self._vocabulary, lambda text: [])
        return tokens.tokens, tokens.special_token_ids

    def compile(self, guide: Guide) -> RequestGrammar:
        """Return the grammar of one request; may take seconds, so not on a thread that answers others.

        Raises:
            InvalidRequestError: The guide is wrong.
        """
        found = self.remembered(guide)
        if found is not None:
            return found
        matcher = _on_large_stack(partial(self._new_matcher, self._tokenizer, guide, _MOST_SHARED_STATES))
        with self._lock:
            self._matchers[guide] = matcher
            while sum(map(_num_bytes, self._matchers)) > _MOST_REMEMBERED_BYTES:
                self._matchers.popitem(last=False)
        return self._of_request(guide, matcher)

    def remembered(self, guide: Guide) -> RequestGrammar | None:
        """Return the grammar of one request at once if the guide is compiled, otherwise None."""
        with self._lock:
            matcher = self._matchers.get(guide)
            if matcher is None:
                return None
            self._matchers.move_to_end(guide)
        return None if is_used_up(matcher) else self._of_request(guide, matcher)

    def _of_request(self, guide: Guide, matcher: Any) -> RequestGrammar:
        renew = partial(_on_large_stack, partial(self._new_matcher, self._tokenizer, guide, MAX_LEXER_STATES))
        return RequestGrammar(matcher, renew, self._vocab_size, len(self._vocabulary.bytes_of))

    def _new_matcher(self, tokenizer: Any, guide: Guide, max_lexer_states: int) -> Any:
        check_guide(guide)
        try:
            grammar = grammar_of(GUIDE_TYPES[guide.kind], guide.text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _wrong(guide, str(error)) from None
        limits = limits_of(max_lexer_states)
        matcher = _llguidance().LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _wrong(guide, matcher.get_error())
        trial = matcher.deep_copy()
        allowed = np.flatnonzero(mask_of(trial)[: self._vocabulary.size])
        if not len(allowed):
            raise _wrong(guide, "it allows no text")
        if not trial.consume_token(int(allowed[0])):
            raise _wrong(guide, f"its first token cannot be followed: {trial.get_error()}")
        if not trial.rollback(1):
            raise _wrong(guide, "a rejected draft could not be taken back: leave out stop= and max_tokens=")
        return matcher

    @cached_property
    def _tokenizer(self) -> Any:
        tokens = _Tokens(self._vocabulary, self._load_encode())
        return _llguidance().LLTokenizer(tokens, n_vocab=len(tokens.tokens))


class _Tokens:
    """The vocabulary as llguidance reads it.

    The end of the output is a token behind all others. So it does not matter which tokens end a request's
    output: they are allowed where this one is.
    """

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        names = vocabulary.special
        # A first byte that no text has marks special tokens, and tokens without text.
        self.tokens = [
            text or b"\xff" + names.get(token_id, b"<%d>" % token_id)
            for token_id, text in enumerate(vocabulary.bytes_of)
        ]
        longest = max(map(len, self.tokens))
        self._most_characters = max(MOST_FORCED_CHARACTERS, 8 * longest)  # the last tokens may be taken back
        self.eos_token_id = len(self.tokens)
        self.tokens.append(b"\xff<end of output>")
        self.special_token_ids = [
            token_id for token_id, text in enumerate(self.tokens) if text.startswith(b"\xff")
        ]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, without the space that SentencePiece's tokenizers write before it.

        Of a longer text only the first tokens are returned, after which llguidance asks again. It needs one
        at a time, so all of them for each token would take time that grows with the square of the text.
        """
        text = text[: self._most_characters]
        ids = self._encode(text)
        return ids if self._vocabulary.join(ids) == text.encode() else self._vocabulary.spell(text.encode())


def check_guide(guide: Guide) -> None:
    """Refuse a guide that needs no trial for that.

    Raises:
        InvalidRequestError: The guide is of an unknown type, or too long.
    """
    if guide.kind not in GUIDE_TYPES:
        raise InvalidRequestError(
            f"the type of the guide is unknown: guided_decoding_guide_type={guide.kind!r:.100}",
            f"send one of {', '.join(GUIDE_TYPES)}",
        )
    most_bytes = MAX_EBNF_BYTES if guide.kind == "ebnf_grammar" else MAX_GUIDE_BYTES
    if (num_bytes := len(guide.text.encode())) > most_bytes:
        raise InvalidRequestError(
            f"the guide is too long: guided_decoding_guide_type={guide.kind}, {num_bytes} bytes, not at most "
            f"{most_bytes}",
            "send a smaller schema or grammar",
        )


def _num_bytes(guide: Guide) -> int:
    """Return the most memory that a remembered guide takes."""
    return len(guide.text) * _BYTES_PER_CHARACTER + _MOST_SHARED_STATES * _BYTES_PER_STATE


def _on_large_stack(work: Callable[[], _Result]) -> _Result:
    """Return what a function returns or raise what it raises, on a thread with a stack of its own."""
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            os.nice(NICENESS)  # this thread alone
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    with _stack_size:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=run, name="guide", daemon=True).start()
        finally:
            threading.stack_size(usual)
    return done.result()


def _llguidance() -> Any:
    import llguidance  # clients need only the types of guides

    return llguidance


def _wrong(guide: Guide, reason: str) -> InvalidRequestError:
    return wrong_guide(f"guided_decoding_guide_type={guide.kind}", reason)
