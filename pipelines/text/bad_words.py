"""Bans bad words by the bytes of the output, so that they cannot appear in any tokenization.

The prefixes of several words that a text ends with are found at a cost that hardly depends on the words.
The words form one row of bits: a bit is set if the text ends with the prefix up to that byte. Each byte of
text shifts all bits in one operation. A separate search for each of 32 words of 256 bytes could cost 80 ms
per output token, on the thread that serves all requests.

Source: Baeza-Yates and Gonnet 1992, A new approach to text searching, CACM 35(10) ("Shift-And").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipelines.text.vocabulary import Vocabulary


class WordPrefixes:
    """Follows a text byte by byte; the state is an integer, 0 if no word is partially matched.

    Args:
        words: Non-empty byte strings.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self._row = b"".join(words)
        self._codes = np.frombuffer(self._row, np.uint8)
        self._ends = np.cumsum([len(word) for word in words])
        self._first = sum(1 << int(end) - len(word) for end, word in zip(self._ends, words, strict=True))
        self._places: dict[int, int] = {}

    def advance(self, state: int, text: bytes) -> int:
        """Return the state after more text."""
        for byte in text:
            # A bit shifted past the end of a word lands on the start of the next, which is set anyway.
            state = (state << 1 | self._first) & self._places_of(byte)
        return state

    def rests(self, state: int, longest: int) -> set[bytes]:
        """Return the non-empty rests of partially matched words, up to a length of ``longest``."""
        return {self._row[begin:end] for begin, end in self._open(state) if 0 < end - begin <= longest}

    def _open(self, state: int) -> Iterator[tuple[int, int]]:
        """Return the span of the rest of each partially matched word."""
        packed = np.frombuffer(state.to_bytes(-(-len(self._row) // 8), "little"), np.uint8)
        begins = np.flatnonzero(np.unpackbits(packed, bitorder="little")) + 1
        ends = self._ends[np.searchsorted(self._ends, begins)]
        return zip(begins.tolist(), ends.tolist(), strict=True)

    def _places_of(self, byte: int) -> int:
        """Return the bits of all positions of a byte; computed on first use."""
        if byte not in self._places:
            packed = np.packbits(self._codes == byte, bitorder="little")
            self._places[byte] = int.from_bytes(packed.tobytes(), "little")
        return self._places[byte]


# Number of cached word lists, so that rounds need not search the vocabulary again. Each entry may hold every
# token.
_NUM_REMEMBERED = 128


@dataclass(frozen=True)
class Searched:
    """The bad words of a request, prepared for a vocabulary.

    Attributes:
        containing: int32 [n], tokens that contain one of the words.
        prefixes: Matches prefixes of the words.
    """

    containing: npt.NDArray[np.int32]
    prefixes: WordPrefixes


class Completions:
    """Finds the tokens of a vocabulary that contain or complete a word.

    Args:
        vocabulary: Bytes of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        by_bytes = sorted(range(vocabulary.size), key=vocabulary.bytes_of.__getitem__)
        self._by_bytes = np.array(by_bytes, np.int32)
        self._sorted = [vocabulary.bytes_of[token_id] for token_id in by_bytes]
        self.longest = max(map(len, self._sorted))
        # The bytes of all tokens one after another, the token of each byte, and the positions of each byte
        # value.
        self._row = np.frombuffer(b"".join(vocabulary.bytes_of), np.uint8)
        self._owners = np.repeat(np.arange(vocabulary.size), [len(text) for text in vocabulary.bytes_of])
        self._places = np.argsort(self._row, kind="stable")
        self._begins = np.searchsorted(self._row[self._places], np.arange(257))
        self.of = lru_cache(_NUM_REMEMBERED)(self._search)

    def starting_with(self, rest: bytes) -> npt.NDArray[np.int32]:
        """Return the tokens whose bytes start with ``rest``, int32 [n]."""
        begin = bisect_left(self._sorted, rest)
        stem = rest.rstrip(b"\xff")
        after = (
            stem[:-1] + bytes([stem[-1] + 1]) if stem else None
        )  # the smallest string that sorts after all of them
        end = len(self._sorted) if after is None else bisect_left(self._sorted, after, begin)
        return self._by_bytes[begin:end]

    def _search(self, words: tuple[bytes, ...]) -> Searched:
        is_contained = np.zeros(self.vocabulary.size, np.bool_)
        for word in words:
            if len(word) <= self.longest:
                is_contained[self._owners_of(word)] = True
        return Searched(np.flatnonzero(is_contained).astype(np.int32), WordPrefixes(words))

    def _owners_of(self, word: bytes) -> npt.NDArray[np.intp]:
        """Return the tokens that contain a word, searched by its rarest byte; may contain duplicates."""
        numbers = np.diff(self._begins)
        rarest = min(range(len(word)), key=lambda index: int(numbers[word[index]]))
        byte = word[rarest]
        at = self._places[self._begins[byte] : self._begins[byte + 1]] - rarest
        at = at[(at >= 0) & (at + len(word) <= len(self._row))]
        for index, each in enumerate(word):
            at = at[self._row[at + index] == each]
        owners = self._owners[at]
        whole: npt.NDArray[np.intp] = owners[owners == self._owners[at + len(word) - 1]]
        return whole


class BadWords:
    """Tracks one output and bans the tokens that would complete a bad word.

    Only output counts: text of the prompt is ignored. A token without text is never banned.

    Args:
        words: Non-empty byte strings.
        completions: Completions of the vocabulary.
        output_ids: Earlier output that is continued.
    """

    def __init__(
        self, words: Sequence[bytes], completions: Completions, output_ids: Sequence[int] = ()
    ) -> None:
        self._completions = completions
        self._searched = completions.of(tuple(words))
        num_kept = max(map(len, words)) - 1
        tail = b""
        for token_id in reversed(output_ids):
            if len(tail) >= num_kept:
                break
            tail = completions.vocabulary.join([token_id]) + tail
        self._state = self._searched.prefixes.advance(0, tail[max(0, len(tail) - num_kept) :])

    def banned_ids(self) -> npt.NDArray[np.int32]:
        """Return the tokens that must not come next, int32 [n]; may contain duplicates."""
        rests = self._searched.prefixes.rests(self._state, self._completions.longest) if self._state else ()
        completing = [self._completions.starting_with(rest) for rest in rests]
        return np.concatenate((self._searched.containing, *completing))

    def push(self, token_id: int) -> None:
        """Add one output token."""
        self._state = self._searched.prefixes.advance(
            self._state, self._completions.vocabulary.join([token_id])
        )
