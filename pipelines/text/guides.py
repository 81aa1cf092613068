"""Compiles the guides of requests to grammars.

llguidance parses the grammars and computes the masks. It may write a forced text, such as a key of a JSON
schema, only in the tokens with which the tokenizer would write it; so it gets our tokenizer, and without one
its masks would be wrong.

Source: llguidance 1.9, https://github.com/guidance-ai/llguidance.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.text.grammar import RequestGrammar, is_used_up, mask_of
from pipelines.text.vocabulary import Vocabulary

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

_NUM_REMEMBERED = 64
_MAX_LEXER_STATES = 50_000
"""All outputs of a guide share them; when they are used up, the guide is compiled again."""
_MOST_SECONDS_IN_A_STEP = 0.1
_ANY_JSON = '{"type": "object"}'
_JSON_DEFAULTS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}"}
"""Models have filled answers with spaces to their end where any number was allowed."""


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


@dataclass(frozen=True)
class _Compiled:
    """A matcher at the beginning of a guide, and the seconds that compiling it took."""

    matcher: Any
    seconds: float


class GrammarCompiler:
    """Compiles the guides of requests for one vocabulary. Thread-safe.

    Args:
        vocabulary: Bytes of the tokens.
        vocab_size: Logits per position, at least as many as tokens.
        load_encode: Loads the tokenizer and returns a function that turns text into tokens, without special
            tokens; called when the first guide arrives.
    """

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, load_encode: Callable[[], Callable[[str], list[int]]]
    ) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._load_encode = load_encode
        self._compiled: OrderedDict[Guide, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, guide: Guide) -> RequestGrammar:
        """Return the grammar of one request; may take a second, so not on a thread that answers others.

        Raises:
            InvalidRequestError: The guide is of an unknown type, too long, or wrong.
        """
        compiled = self._find(guide)
        if is_used_up(compiled.matcher):
            self._compile(guide)
        return self._of_request(guide)

    def remembered(self, guide: Guide) -> RequestGrammar | None:
        """Return the grammar of one request at once if the guide is compiled, otherwise None."""
        with self._lock:
            compiled = self._compiled.get(guide)
        return None if compiled is None or is_used_up(compiled.matcher) else self._of_request(guide)

    def _of_request(self, guide: Guide) -> RequestGrammar:
        find_matcher = partial(self._matcher_in_a_step, guide)
        return RequestGrammar(find_matcher, self._vocab_size, len(self._vocabulary.bytes_of))

    def _matcher_in_a_step(self, guide: Guide, *, with_room: bool = False) -> Any:
        """Return a matcher at the beginning, to be copied, while a step may wait for it.

        Args:
            guide: The guide.
            with_room: Whether to compile the guide again if its lexer is used up.

        Raises:
            InvalidRequestError: Compiling it again would hold up all requests.
        """
        compiled = self._find(guide)
        if not (with_room and is_used_up(compiled.matcher)):
            return compiled.matcher
        if compiled.seconds > _MOST_SECONDS_IN_A_STEP:
            raise InvalidRequestError(
                "the answers with this guide have used up its lexer",
                values=f"compiling the guide again takes {compiled.seconds:.1f} s",
                limit=f"at most {_MOST_SECONDS_IN_A_STEP} s while other requests wait",
                remedy="send the request again, or a simpler schema or grammar",
            )
        return self._compile(guide).matcher

    def _find(self, guide: Guide) -> _Compiled:
        with self._lock:
            if guide in self._compiled:
                self._compiled.move_to_end(guide)
                return self._compiled[guide]
        return self._compile(guide)

    def _compile(self, guide: Guide) -> _Compiled:
        began_s = time.perf_counter()
        compiled = _Compiled(self._new_matcher(guide), time.perf_counter() - began_s)
        with self._lock:
            self._compiled[guide] = compiled
            self._compiled.move_to_end(guide)
            if len(self._compiled) > _NUM_REMEMBERED:
                self._compiled.popitem(last=False)
        return compiled

    def _new_matcher(self, guide: Guide) -> Any:
        if guide.kind not in GUIDE_TYPES:
            raise InvalidRequestError(
                "the type of the guide is unknown",
                values=f"guided_decoding_guide_type={guide.kind!r:.100}",
                limit=", ".join(GUIDE_TYPES),
                remedy="send one of these types",
            )
        most_bytes = MAX_EBNF_BYTES if guide.kind == "ebnf_grammar" else MAX_GUIDE_BYTES
        if len(guide.text.encode()) > most_bytes:
            raise InvalidRequestError(
                "the guide is too long",
                values=f"guided_decoding_guide_type={guide.kind}, {len(guide.text.encode())} bytes",
                limit=f"at most {most_bytes} bytes",
                remedy="send a smaller schema or grammar",
            )
        try:
            if GUIDE_TYPES[guide.kind] == "json_schema":
                schema = json.loads(guide.text or _ANY_JSON)
                own = schema.get("x-guidance", {}) if isinstance(schema, dict) else {}
                defaults = None if "whitespace_flexible" in own else _JSON_DEFAULTS
                grammar = _llguidance().LLMatcher.grammar_from_json_schema(schema, defaults=defaults)
            else:
                if guide.kind == "choice":
                    _check_choices(guide.text)
                grammar = _llguidance().grammar_from(GUIDE_TYPES[guide.kind], guide.text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _wrong(guide, str(error)) from None
        matcher = _llguidance().LLMatcher(self._tokenizer, grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            raise _wrong(guide, matcher.get_error())
        trial = matcher.deep_copy()
        allowed = np.flatnonzero(mask_of(trial)[: self._vocabulary.size])
        if not len(allowed):
            raise _wrong(guide, "it allows no text")
        if not (trial.consume_token(int(allowed[0])) and trial.rollback(1)):
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
        self.eos_token_id = len(self.tokens)
        self.tokens.append(b"\xff<end of output>")
        self.special_token_ids = [
            token_id for token_id, text in enumerate(self.tokens) if text.startswith(b"\xff")
        ]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, without the space that SentencePiece's tokenizers write before it."""
        ids = self._encode(text)
        return ids if self._vocabulary.join(ids) == text.encode() else self._vocabulary.spell(text.encode())


@lru_cache(_NUM_REMEMBERED)
def unenforced(schema: str) -> tuple[str, ...]:
    """Return what of a JSON schema no grammar enforces; none if the schema is refused."""
    if len(schema) > MAX_GUIDE_BYTES:
        return ()
    matcher = _llguidance().LLMatcher
    try:
        grammar = matcher.grammar_from_json_schema(schema)
    except ValueError:
        return ()
    is_wrong, reasons = matcher.validate_grammar_with_warnings(grammar, limits=_limits())
    return () if is_wrong else tuple(reasons)


def _check_choices(text: str) -> None:
    choices = json.loads(text)
    is_list = isinstance(choices, list) and len(choices) > 0
    if not is_list or not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError("it must be a JSON list of texts that are not empty")


def _llguidance() -> Any:
    import llguidance  # with the first guide: servers start without it

    return llguidance


def _limits() -> Any:
    """Return limits that keep a hostile grammar from holding up other requests."""
    return _llguidance().LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=_MAX_LEXER_STATES,
        verbose_errors=False,
    )


def _wrong(guide: Guide, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the guide cannot be compiled",
        values=f"guided_decoding_guide_type={guide.kind}: {' '.join(reason.split())[:500]}",
        limit="a guide that llguidance compiles; it refuses what it cannot enforce",
        remedy="correct the place that is named, or leave out the keyword",
    )
