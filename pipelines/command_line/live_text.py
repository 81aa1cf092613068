"""Print text as it arrives, with accepted draft tokens marked."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from pipelines.client import Chunk
from pipelines.text.vocabulary import Vocabulary

# Generated text must not control the terminal: control characters are replaced by their Unicode pictures.
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {127: "\u2421"}


@dataclass(frozen=True)
class Segment:
    """A piece of text of one origin.

    Attributes:
        text: The text, not empty.
        is_accepted: Whether it consists of accepted draft tokens; otherwise the target generated it.
    """

    text: str
    is_accepted: bool


def segments(chunk: Chunk, vocabulary: Vocabulary) -> list[Segment]:
    """Split the text of a chunk by the origin of its tokens.

    A character that several tokens encode has the origin of the last of them.

    Args:
        chunk: A chunk from ``generate``, which marks the origin of each token.
        vocabulary: Vocabulary of the target.
    """
    pieces = list(_pieces(chunk, vocabulary))
    return [
        Segment("".join(piece.text for piece in run), is_accepted)
        for is_accepted, run in groupby(pieces, key=lambda piece: piece.is_accepted)
    ]


def _pieces(chunk: Chunk, vocabulary: Vocabulary) -> Iterator[Segment]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    accepted = False
    for token_id, accepted in zip(chunk.output_ids, chunk.accepted_mask, strict=True):
        text = decoder.decode(vocabulary.join([token_id]))
        if text:
            yield Segment(text, accepted)
    rest = decoder.decode(b"", final=True)
    if rest:
        yield Segment(rest, accepted)


class LiveText:
    """Writer of marked text, which uses colours on a terminal and guillemets elsewhere.

    Args:
        out: Stream to write to.
        margin: Indentation of each new line.
    """

    def __init__(self, out: TextIO, margin: str = "      ") -> None:
        self._out = out
        self._margin = margin
        self._has_colour = out.isatty()

    @property
    def legend(self) -> str:
        """Return an explanation of the marks."""
        mark = self._mark("accepted draft tokens")
        if self._has_colour:
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
            text = part.text.translate(_PICTURES).replace("\n", f"\n{self._margin}")
            self._write(self._mark(text) if part.is_accepted else text)

    def end(self, summary: str) -> None:
        """End the text and write a summary."""
        self._write(f"\n{self._margin}{self._dim(summary)}\n")

    def _mark(self, text: str) -> str:
        return f"\x1b[32m{text}\x1b[0m" if self._has_colour else f"«{text}»"

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._has_colour else text

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
