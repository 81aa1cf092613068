"""The bytes that each token stands for, read from a Hugging Face ``tokenizer.json``.

Joining the bytes of tokens gives the bytes of their text, so text can be cut and searched exactly at
any token, inside multi-byte characters too. Covers byte-level BPE (GPT-2, Llama 3, Qwen) and
SentencePiece-style BPE with byte fallback (Llama 2, Mistral), whose first leading space a full decoder
would drop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import EngineLoadError

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """Bytes of every token.

    Attributes:
        bytes_of: Entry i holds the bytes of token i; special tokens spell nothing.
    """

    bytes_of: tuple[bytes, ...]

    @classmethod
    def from_file(cls, path: Path) -> Vocabulary:
        """Read ``tokenizer.json``.

        Raises:
            EngineLoadError: The file is missing, no JSON, or of an unsupported kind.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            vocab: dict[str, int] = document["model"]["vocab"]
            added = document.get("added_tokens") or []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the tokenizer file cannot be read",
                values=f"{path}: {error}",
                limit="a Hugging Face tokenizer.json with a BPE model is needed",
                remedy="rebuild the engine from a checkpoint with its tokenizer.json",
            ) from error
        spell = _byte_level_spelling if _is_byte_level(document) else _sentencepiece_spelling
        size = 1 + max([*vocab.values(), *(token["id"] for token in added)])
        table = [b""] * size
        for text, token_id in vocab.items():
            table[token_id] = spell(text)
        for token in added:
            table[token["id"]] = b"" if token["special"] else token["content"].encode("utf-8")
        return cls(tuple(table))

    @property
    def size(self) -> int:
        """One more than the highest token id."""
        return len(self.bytes_of)

    def join(self, token_ids: Iterable[int]) -> bytes:
        """Bytes of consecutive tokens. Ids beyond the vocabulary (padding rows of a model) spell nothing."""
        table = self.bytes_of
        return b"".join(table[token_id] if token_id < len(table) else b"" for token_id in token_ids)


def _is_byte_level(document: dict[str, Any]) -> bool:
    decoder = document.get("decoder") or {}
    parts = [decoder, *decoder.get("decoders", [])]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_of_character()


def _byte_level_spelling(text: str) -> bytes:
    return bytes(_BYTE_OF[character] for character in text)


def _sentencepiece_spelling(text: str) -> bytes:
    fallback = _BYTE_FALLBACK.fullmatch(text)
    if fallback:
        return bytes([int(fallback[1], 16)])
    return text.replace("\u2581", " ").encode("utf-8")
