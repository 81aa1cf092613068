"""Reads the parts of a message from the text that a model writes, as it arrives.

While a model may call tools, the grammar keeps its text in the form that is read here, so a text can only be
cut off. Calls that a model writes as JSON without the marks are read only whole. However the text is divided
into chunks, the joined parts are the same. No state looks again at text that it holds back, so that a chunk
costs what is new in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from pipelines.front_door.messages.bare_calls import BareCalls, Opening
from pipelines.front_door.messages.call_styles.call_style import MOST_OPENING, Arguments, CallStyle, num_begun
from pipelines.front_door.messages.message import (
    THINK_BEGIN,
    THINK_END,
    CallArguments,
    CallBegin,
    Content,
    Part,
    Thinking,
    Thought,
)
from pipelines.front_door.messages.tools import NAME, Function

_STRETCH = 4096  # characters that are read at once: of a long text each part would be cut off the rest


class MessageReader:
    """Reads one message.

    Spaces around thoughts and before calls are left out. A call that is cut off before its arguments is too.

    Args:
        thinking: Whether the text begins with thoughts.
        style: How calls are written; None if there can be none.
        thoughts: What stands before and behind thoughts; None for the usual marks.
        functions: The functions that may be called: JSON that names another one is text where the style has
            bare calls.
        is_structured: Whether text beside calls has a form of its own, so that calls open only at its place.
        is_parallel: Whether there may be more than one call in blocks.
        new_id: Returns the id of a call; None for the style's.
    """

    def __init__(
        self,
        thinking: Thinking,
        style: CallStyle | None = None,
        *,
        thoughts: tuple[str, str] | None = None,
        functions: Sequence[Function] = (),
        is_structured: bool = False,
        is_parallel: bool = True,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self._style = style
        self._think_begin, self._think_end = thoughts or (THINK_BEGIN, THINK_END)
        self._is_at_start = style is not None and (style.is_bare or is_structured)
        self._functions = {function.name: function for function in functions}
        self._new_id: Callable[[], str] = new_id or (style.new_id if style is not None else str)
        self._bare = [] if style is None else style.json_opening(sorted(self._functions))
        self._fences = dict(style.fences) if style is not None and functions else {}
        self._openings: list[Opening] = []  # that the answer, or what follows a block, may begin with
        self._thinking = Opening([[self._think_begin]])
        self._block: BareCalls | None = None
        self._fence_begin = ""  # of the block
        self._is_parallel = is_parallel
        self._text = ""  # that is not read yet
        self._seen = 0  # characters of it that the state has looked at
        self._is_ended = False
        self._has_thought = False
        self._arguments: Arguments | None = None  # of the call that is read
        self._read_more = {
            Thinking.NONE: self._read_begin,
            Thinking.POSSIBLE: self._read_think_begin,
            Thinking.BEGUN: self._read_thoughts,
        }[thinking]

    def read(self, text: str, *, is_last: bool = False) -> list[Part]:
        """Return the parts that the next piece of text completes, or all that is left if it is the last."""
        parts: list[Part] = []
        for place in range(0, len(text), _STRETCH):
            self._text += text[place : place + _STRETCH]
            parts += self._advance()
        return parts + self.end() if is_last else parts

    def end(self) -> list[Part]:
        """Return the parts that were held back, after the last piece."""
        self._is_ended = True
        return list(self._advance())

    def _advance(self) -> Iterator[Part]:
        while True:
            before = self._read_more, len(self._text)
            yield from self._read_more()
            self._seen *= self._read_more == before[0]
            if (self._read_more, len(self._text)) == before:
                return

    def _read_think_begin(self) -> Iterator[Part]:
        begins = self._thinking.read(self._text)
        if begins:
            self._text = self._text[self._thinking.place :]
            self._read_more = self._read_thoughts
        elif begins is False or self._is_ended:
            self._read_more = self._read_begin
        yield from ()

    def _read_thoughts(self) -> Iterator[Part]:
        if not self._has_thought:
            self._text, self._seen = self._text.lstrip(), 0
        piece, found = self._take_until(self._think_end)
        if piece:
            self._has_thought = True
            yield Thought(piece)
        if found:
            self._text = self._text.lstrip()[len(self._think_end) :]
            self._read_more = self._read_space

    def _read_space(self) -> Iterator[Part]:
        self._text = self._text.lstrip()
        if self._text:
            self._read_more = self._read_begin
        yield from ()

    def _read_begin(self) -> Iterator[Part]:
        """Find out whether a message that is either one begins as text or as a call."""
        if self._style is not None and not self._openings:
            of_mark = [[[self._style.mark]]] if self._is_at_start else []
            of_bare = [self._bare] if (self._style.is_bare if self._is_at_start else self._fences) else []
            self._openings = [Opening(pieces) for pieces in (*of_mark, *of_bare)]
        begins = [each.read(self._text) for each in self._openings]
        if None in begins and True not in begins and not self._is_ended:
            return
        self._read_more, self._openings = self._read_content, []
        if True in begins and self._is_at_start:
            self._read_more = self._read_head
        elif True in begins:
            self._begin_block(None)
        yield from ()

    def _read_content(self) -> Iterator[Part]:
        if self._style is None or self._is_at_start:
            piece, found, self._text = self._text, "", ""
        else:
            piece, found = self._take_until(self._style.mark, *self._fences)
        if piece:
            yield Content(piece)
        if found in self._fences:
            self._begin_block((found, self._fences[found]))
        elif found:
            self._read_more = self._read_head

    def _begin_block(self, fence: tuple[str, str] | None) -> None:
        self._block = BareCalls(self._bare, fence, is_parallel=self._is_parallel)
        self._fence_begin = "" if fence is None else fence[0]
        self._read_more = self._read_block

    def _read_block(self) -> Iterator[Part]:
        """Read a block, or the rest of the answer: calls if it is that as a whole, or text."""
        assert self._block is not None
        is_call = self._block.read(self._text, is_ended=self._is_ended)
        if is_call:
            self._text = self._text[self._block.end :]
            self._read_more = self._read_space
            self._fences = self._fences if self._is_parallel else {}
            for name, arguments in self._block.calls:
                yield CallBegin(self._new_id(), name)
                yield CallArguments(arguments)
        elif is_call is False:
            rest = self._text.lstrip()[len(self._fence_begin) :]
            before, self._text = self._text[: len(self._text) - len(rest)], rest
            self._read_more = self._read_content
            if before:
                yield Content(before)

    def _read_head(self) -> Iterator[Part]:
        assert self._style is not None
        head = None
        if self._style.head_end in self._text[self._seen :]:
            head = re.search(self._style.head(f"({NAME})"), self._text)
        if head is None:
            self._text = self._text[-MOST_OPENING:]
            self._seen = len(self._text)
            return
        self._text = self._text[head.end() :]
        self._arguments = self._style.new_arguments(self._functions.get(head[1]))
        self._read_more = self._read_arguments
        yield CallBegin(self._new_id(), head[1])

    def _read_arguments(self) -> Iterator[Part]:
        assert self._arguments is not None
        piece, self._text = self._arguments.read(self._text)
        if piece:
            yield CallArguments(piece)
        if self._arguments.is_done:
            self._read_more = self._read_head

    def _take_until(self, *marks: str) -> tuple[str, str]:
        """Return text up to the first mark, without spaces before it, and the mark; "" if none follows yet.

        The spaces, and what may still become spaces and a mark, are held back.
        """
        text, begin = self._text, self._seen
        places = {place: mark for mark in marks if (place := text.find(mark, begin)) >= 0}
        place, found = min(places.items(), default=(len(text), ""))
        if not found and self._is_ended:
            self._text = ""
            return text, found
        if not found:
            place -= max(num_begun(text, mark) for mark in marks)
        new = text[begin:place].rstrip()
        piece = text[: begin + len(new)] if new else ""
        self._text, self._seen = text[len(piece) :], place - len(piece)
        return piece, found
