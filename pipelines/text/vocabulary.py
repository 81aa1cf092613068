"""Reads the bytes of each token from a Hugging Face ``tokenizer.json``.

The joined bytes of tokens are the bytes of their text, so text can be cut and searched exactly at any token,
even inside multi-byte characters. Supports byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece's BPE and
Unigram (Llama 2, Mistral, Gemma), except that a full decoder would drop the first leading space of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.errors import EngineLoadError

_MODELS = ("BPE", "Unigram")  # WordPiece and WordLevel belong to encoders, and join tokens with spaces
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of every token.

    Attributes:
        bytes_of: Entry i holds the bytes of token i; special tokens have none.
        special: Names of the special tokens by id, such as ``<|im_end|>``.
        fallback_ids: SentencePiece's byte tokens, which spell what no piece spells.
    """

    bytes_of: tuple[bytes, ...]
    special: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    fallback_ids: frozenset[int] = frozenset()

    @classmethod
    def from_file(cls, path: Path) -> Vocabulary:
        """Read ``tokenizer.json``.

        Raises:
            EngineLoadError: The file is missing, not JSON, or unsupported.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _unusable(path, error) from None
        return cls.parse(content, path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Vocabulary:
        """Parse the content of ``tokenizer.json``.

        Args:
            content: Content of the file.
            path: Path of the file, for errors.

        Raises:
            EngineLoadError: The content is not JSON or unsupported.
        """
        try:
            document = json.loads(content)
            kind = document["model"].get("type", "BPE")  # files of old versions do not name it
            if kind not in _MODELS:
                raise ValueError(f"a {kind} model")
            pieces = document["model"]["vocab"]
            # Unigram lists [piece, score]; the id is the position.
            vocab = (
                pieces if isinstance(pieces, dict) else {piece: at for at, (piece, _) in enumerate(pieces)}
            )
            added = {token["id"]: token for token in document.get("added_tokens") or []}
        except (ValueError, KeyError, TypeError) as error:
            raise _unusable(path, error) from error
        is_byte_level = _is_byte_level(document)
        spell = _byte_level_spelling if is_byte_level else _sentencepiece_spelling
        fallback = () if is_byte_level else (vocab[text] for text in vocab if _BYTE_FALLBACK.fullmatch(text))
        table = [b""] * (1 + max([*vocab.values(), *added]))
        for text, token_id in vocab.items():
            if token_id not in added:  # some files list added tokens here too, in plain text
                table[token_id] = spell(text)
        names = {token_id: token["content"].encode("utf-8") for token_id, token in added.items()}
        special = {token_id: name for token_id, name in names.items() if added[token_id]["special"]}
        for token_id, name in names.items():
            table[token_id] = b"" if token_id in special else name
        return cls(tuple(table), special, frozenset(fallback))

    @property
    def size(self) -> int:
        """Highest token id plus one."""
        return len(self.bytes_of)

    def join(self, token_ids: Iterable[int]) -> bytes:
        """Return the bytes of consecutive tokens; ids beyond the vocabulary (padding) have none."""
        table = self.bytes_of
        return b"".join(table[token_id] if token_id < len(table) else b"" for token_id in token_ids)

    def join_with_special(self, token_ids: Iterable[int], num_bytes: int) -> bytes:
        """Return the bytes of consecutive tokens with the names of special tokens among them.

        Args:
            token_ids: The tokens.
            num_bytes: Bytes of the other tokens after which the text is cut off.
        """
        parts: list[bytes] = []
        for token_id in token_ids:
            text = self.join([token_id])
            parts.append(text[:num_bytes] or self.special.get(token_id, b""))
            if len(text) > num_bytes:
                break
            num_bytes -= len(text)
        return b"".join(parts)

    def spell(self, text: bytes) -> list[int]:
        """Return tokens whose joined bytes are ``text``, each the longest that fits; [] if there are none."""
        token_ids: list[int] = []
        begin = 0
        while begin < len(text):
            ends = range(min(len(text), begin + self._longest), begin, -1)
            found = next((end for end in ends if text[begin:end] in self.id_of), None)
            if found is None:
                return []
            token_ids.append(self.id_of[text[begin:found]])
            begin = found
        return token_ids

    @cached_property
    def id_of(self) -> dict[bytes, int]:
        """The token with these bytes: a piece, if there is also a byte token."""
        pieces_last = sorted(range(self.size), key=lambda token_id: token_id not in self.fallback_ids)
        ids = {self.bytes_of[token_id]: token_id for token_id in pieces_last}
        ids.pop(b"", None)
        return ids

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.bytes_of))


def _unusable(path: Path, error: Exception) -> EngineLoadError:
    return EngineLoadError(
        f"the tokenizer file cannot be read: {path}: {error}",
        "rebuild the engine from a checkpoint with its tokenizer.json, which has a BPE or Unigram model",
    )


def _is_byte_level(document: dict[str, Any]) -> bool:
    decoder = document.get("decoder") or {}
    parts = [decoder, *decoder.get("decoders", [])]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_level_alphabet() -> dict[int, int]:
    """Return GPT-2's alphabet: printable bytes stand for themselves, U+0100 and up for the others.

    Other characters of Latin-1 spell no byte; here they become one that Latin-1 does not have.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return dict.fromkeys(others, 0xFFFF) | {256 + rank: byte for rank, byte in enumerate(others)}


_BYTE_LEVEL_ALPHABET = _byte_level_alphabet()


def _byte_level_spelling(text: str) -> bytes:
    try:
        return text.translate(_BYTE_LEVEL_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")  # as the decoder of tokenizers does


def _sentencepiece_spelling(text: str) -> bytes:
    fallback = _BYTE_FALLBACK.fullmatch(text)
    if fallback:
        return bytes([int(fallback[1], 16)])
    return text.replace("\u2581", " ").encode("utf-8")
