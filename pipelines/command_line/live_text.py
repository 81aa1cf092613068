"""Print text as it arrives, with accepted draft tokens marked."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from pipelines.client import Chunk
from pipelines.text.vocabulary import Vocabulary

# Generated text must not control the terminal: C0 controls are replaced by their Unicode pictures, and C1 and
# bidirectional controls, which have none, by the replacement character.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {127: "\u2421"}
_PICTURES |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")


@dataclass(frozen=True)
class Segment:
    """A piece of text of one origin.

    Attributes:
        text: The text, not empty.
        is_accepted: Whether it consists of accepted draft tokens; otherwise the target generated it.
    """

    text: str
    is_accepted: bool


class Segmenter:
    """Split the text of an answer by the origin of its tokens.

    A character that several tokens encode, also of several chunks, has the origin of the last of them.

    Args:
        vocabulary: Vocabulary of the target.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def segments(self, chunk: Chunk) -> list[Segment]:
        """Return the text that is complete with a chunk; after the last one, another answer may begin.

        Args:
            chunk: The next chunk from ``generate``, which marks the origin of each token.
        """
        pieces = (piece for piece in self._pieces(chunk) if piece.text)
        return [
            Segment("".join(piece.text for piece in run), is_accepted)
            for is_accepted, run in groupby(pieces, key=lambda piece: piece.is_accepted)
        ]

    def _pieces(self, chunk: Chunk) -> Iterator[Segment]:
        accepted = False
        for token_id, accepted in zip(chunk.output_ids, chunk.accepted_mask, strict=True):
            yield Segment(self._decoder.decode(self._vocabulary.join([token_id])), accepted)
        yield Segment(self._decoder.decode(b"", final=chunk.finish_reason != ""), accepted)


class LiveText:
    """Writer of marked text: colours and no control characters on a terminal, guillemets elsewhere.

    Args:
        out: Stream to write to.
        margin: Indentation of each new line.
    """

    def __init__(self, out: TextIO, margin: str = "      ") -> None:
        self._out = out
        self._margin = margin
        self._is_terminal = out.isatty()

    @property
    def legend(self) -> str:
        """Return an explanation of the marks."""
        mark = self._mark("accepted draft tokens")
        if self._is_terminal:
            return f"{self._dim('end of the prompt')}, {mark}, the target's own tokens"
        return f"{mark}, the target's own tokens unmarked; each answer continues the last line of its prompt"

    def begin(self, title: str, prompt: str) -> None:
        """Write a title and the last line of a prompt, which the text continues."""
        last_line = prompt.rstrip("\n").rsplit("\n", 1)[-1]
        self._write(f"{title}\n{self._margin}{self._dim(last_line)}")
        if prompt.endswith("\n"):
            self._write(f"\n{self._margin}")

    def show(self, parts: list[Segment]) -> None:
        """Write segments."""
        for part in parts:
            shown = part.text.translate(_PICTURES) if self._is_terminal else part.text
            text = shown.replace("\n", f"\n{self._margin}")
            self._write(self._mark(text) if part.is_accepted else text)

    def end(self, summary: str) -> None:
        """End the text and write a summary."""
        self._write(f"\n{self._margin}{self._dim(summary)}\n")

    def _mark(self, text: str) -> str:
        return f"\x1b[32m{text}\x1b[0m" if self._is_terminal else f"«{text}»"

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._is_terminal else text

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
