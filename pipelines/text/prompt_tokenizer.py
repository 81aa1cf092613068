"""Turns the text of a prompt into tokens.

Special tokens such as ``<|im_start|>`` are parsed only if the caller says that the text contains some, as one
rendered by a chat template does. Otherwise a user could write a turn of the assistant
(``docs/decisions/sampling.md``).
"""

from __future__ import annotations

import json
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipelines.errors import InvalidRequestError
from pipelines.text.special_names import MARK
from pipelines.text.vocabulary import Vocabulary


class PromptTokenizer:
    """Encodes prompts. Thread-safe.

    Attributes:
        vocabulary: Bytes of the tokens.

    Args:
        content: Content of ``tokenizer.json``.
        path: Path of the file, for errors.

    Raises:
        EngineLoadError: The content is not JSON or unsupported.
    """

    def __init__(self, content: bytes, path: Path) -> None:
        self._content = content
        self.vocabulary = Vocabulary.parse(content, path)
        self._plain = _load(content, parse_special_tokens=False)
        self._parsing: Any = None
        self._lock = threading.Lock()
        self._id_of = {name.decode(): token_id for token_id, name in self.vocabulary.special.items()}
        self._opening, self._closing = self._find_template()

    @property
    def can_parse(self) -> bool:
        """Whether the tokenizer that parses special tokens is loaded; the first text for it does that."""
        return self._parsing is not None

    def load_parser(self) -> Any:
        """Load the tokenizer that parses special tokens, which holds up other threads for half a second."""
        with self._lock:
            if self._parsing is None:  # 150,000 tokens take 30 to 130 MB
                self._parsing = _load(self._content, parse_special_tokens=True)
        return self._parsing

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special_tokens: bool = False
    ) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: The text.
            add_special_tokens: Whether to add those that the tokenizer puts around every text, such as BOS.
                A text that begins with them, which only parsing can find, does not get them twice.
            parse_special_tokens: Whether names of special tokens in the text become these tokens. Names that
                ``special_names.mark_user_names`` has split stay text.

        Raises:
            InvalidRequestError: The text contains the name of a special token, which is not to be parsed, and
                the vocabulary cannot spell it; or a pattern of the tokenizer takes too long for it.
        """
        ids = self._parse(text) if parse_special_tokens else self._encode_plain(text, self._plain)
        if not add_special_tokens:
            return ids
        begins_with_opening = parse_special_tokens and ids[: len(self._opening)] == self._opening
        return [*([] if begins_with_opening else self._opening), *ids, *self._closing]

    def names_special_token(self, text: str) -> bool:
        """Return whether a text contains the name of a special token."""
        return any(name in text for name in self._id_of)

    def _parse(self, text: str) -> list[int]:
        encoding = _encoded(self.load_parser(), text)
        ids: list[int] = encoding.ids
        if MARK not in text:
            return ids
        parsed: list[int] = []
        begin = 0
        for token_id, (start, end) in zip(ids, encoding.offsets, strict=True):
            name = self.vocabulary.special.get(token_id, b"").decode()
            is_whole = name and text[start:end].strip() == name.strip()
            is_text = len(name) == 1 and text.startswith(MARK, end)  # nothing can split such a name
            if is_whole and not is_text:
                parsed += [*self._encode_part(text, begin, start), token_id]
                begin = end
        return parsed + self._encode_part(text, begin, len(text))

    def _encode_part(self, text: str, begin: int, end: int) -> list[int]:
        """Return the tokens of a part between special tokens, without marks."""
        tokenizer = self._later if begin else self._plain
        return self._encode_plain(text[begin:end].replace(MARK, ""), tokenizer)

    @cached_property
    def _later(self) -> Any:
        """The tokenizer for text behind a special token, where some put no space before the first word."""
        document = json.loads(self._content)
        settings = document.get("pre_tokenizer") or {}
        parts = [settings, *settings.get("pretokenizers", [])]
        changed = [part for part in parts if part.get("prepend_scheme") == "first"]
        if not changed:
            return self._plain
        for part in changed:
            part["prepend_scheme"] = "never"
        return _load(json.dumps(document).encode(), parse_special_tokens=False)

    def _encode_plain(self, text: str, tokenizer: Any) -> list[int]:
        encoding = _encoded(tokenizer, text)
        ids: list[int] = encoding.ids
        if self.vocabulary.special.keys().isdisjoint(ids):
            return ids
        # Models with special tokens in their own vocabulary find them there: Unigram always does.
        spelled: list[int] = []
        for token_id, (begin, end) in zip(ids, encoding.offsets, strict=True):
            name = self.vocabulary.special.get(token_id, b"")
            is_named = name and text[begin:end].encode() == name  # otherwise an unknown character
            spelled += self._spell(name) if is_named else [token_id]
        return spelled

    def _spell(self, name: bytes) -> list[int]:
        ids = self.vocabulary.spell(name)
        if not ids:
            raise InvalidRequestError(
                f"the text contains a special token's name that other tokens cannot spell: {name.decode()!r}",
                "send parse_special_tokens=true if the special token is meant, or leave the name out",
            )
        return ids

    def _find_template(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that the tokenizer adds before and after every text."""
        whole: list[int] = self._plain.encode("a").ids
        bare: list[int] = self._plain.encode("a", add_special_tokens=False).ids
        if not bare:  # the vocabulary has no "a"
            return whole, []
        begin = next(at for at in range(len(whole) + 1) if whole[at : at + len(bare)] == bare)
        return whole[:begin], whole[begin + len(bare) :]


def _encoded(tokenizer: Any, text: str) -> Any:
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:  # Oniguruma gives up after ten million steps, and the package panics
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise InvalidRequestError(
            f"the tokenizer cannot split this text: {len(text)} characters: {error!s:.200}",
            "change the text, or use a checkpoint whose tokenizer has another pattern",
        ) from None


def _load(content: bytes, *, parse_special_tokens: bool) -> Any:
    tokenizer = Tokenizer.from_buffer(content)
    # Settings of a trainer that its file has kept: they would cut prompts, or fill them up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # The library's name for splitting special tokens as any other text.
    tokenizer.encode_special_tokens = not parse_special_tokens
    return tokenizer
