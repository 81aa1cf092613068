"""Reads the parts of a message from the text that a model writes, as it arrives.

While a model may call tools, the grammar keeps its text in the form that is read here, so a text can only be
cut off. Calls that a model writes as JSON without the marks are read only whole. However the text is divided
into chunks, the joined parts are the same.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Iterator, Sequence

from pipelines.front_door.messages.arguments import BareArguments, JsonArguments, TaggedArguments, divided
from pipelines.front_door.messages.message import CallArguments, CallBegin, Content, Part, Thought
from pipelines.front_door.messages.style import NAME, THINK_BEGIN, THINK_END, CallStyle, Thinking
from pipelines.front_door.messages.tools import Function

_MISTRAL_ID_SIZE = 9
_FENCE_END = "```"


def new_call_id(style: CallStyle) -> str:
    """Return a new id of a call; templates of Mistral want nine letters and digits."""
    if style.is_mistral:
        alphabet = string.ascii_letters + string.digits
        return "".join(secrets.choice(alphabet) for _ in range(_MISTRAL_ID_SIZE))
    return f"call_{secrets.token_hex(12)}"


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
        is_parallel: Whether there may be more than one call in blocks of Markdown.
        new_id: Returns the id of a call.
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
        new_id: Callable[[CallStyle], str] = new_call_id,
    ) -> None:
        self._style = style
        self._think_begin, self._think_end = thoughts or (THINK_BEGIN, THINK_END)
        self._is_at_start = style is not None and (style.is_bare or is_structured)
        self._functions = {function.name: function for function in functions}
        self._new_id = new_id
        self._openings = [] if style is None else style.openings(self._functions)
        self._fences = [style.fence] if style is not None and style.fence and functions else []
        self._is_parallel = is_parallel
        self._text = ""  # that is not read yet
        self._num_received = 0  # characters
        self._is_ended = False
        self._has_thought = False
        self._arguments: JsonArguments | TaggedArguments | BareArguments = JsonArguments()
        self._read_more = {
            Thinking.NONE: self._read_begin,
            Thinking.POSSIBLE: self._read_think_begin,
            Thinking.BEGUN: self._read_thoughts,
        }[thinking]

    def read(self, text: str) -> list[Part]:
        """Return the parts that the next piece of text completes."""
        self._text += text
        self._num_received += len(text)
        return list(self._advance())

    def end(self) -> list[Part]:
        """Return the parts that were held back, after the last piece."""
        self._is_ended = True
        return list(self._advance())

    def _advance(self) -> Iterator[Part]:
        while True:
            before = self._read_more, len(self._text)
            yield from self._read_more()
            if (self._read_more, len(self._text)) == before:
                return

    def _read_think_begin(self) -> Iterator[Part]:
        begins = _begins_with(self._text, [self._think_begin])
        if begins:
            self._text = self._text.lstrip()[len(self._think_begin) :]
            self._read_more = self._read_thoughts
        elif begins is False or self._is_ended:
            self._read_more = self._read_begin
        yield from ()

    def _read_thoughts(self) -> Iterator[Part]:
        if not self._has_thought:
            self._text = self._text.lstrip()
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
        self._read_more = self._read_content
        if self._style is not None and (self._is_at_start or self._fences):
            bare = self._style.bare_openings(self._functions)
            openings = self._openings if self._is_at_start else bare
            begins = [_begins_with(self._text, each) for each in openings]
            if True in begins:
                self._read_more = self._read_head if self._is_at_start else self._read_block
            elif None in begins and not self._is_ended:
                self._read_more = self._read_begin
        yield from ()

    def _read_content(self) -> Iterator[Part]:
        place = self._num_received - len(self._text)
        if self._style is None or self._is_at_start:
            piece, found, self._text = self._text, "", ""
        else:
            piece, found = self._take_until(self._style.mark, *self._fences)
        if piece:
            yield Content(piece, place)
        if found:
            self._read_more = self._read_block if found in self._fences else self._read_head

    def _read_block(self) -> Iterator[Part]:
        """Read a block of Markdown, or the rest of the answer: a call if it is one whole, or text."""
        assert self._style is not None
        place = self._num_received - len(self._text)
        fence = re.match(rf"\s*({re.escape(self._style.fence)})?", self._text)
        assert fence is not None
        block = self._text[fence.end() :]
        openings = dict(zip(self._functions, self._style.bare_openings(self._functions), strict=True))
        begins = {name: _begins_with(block, opening) for name, opening in openings.items()}
        name = next((name for name in begins if begins[name]), "")
        arguments, rest = "", "" if None in begins.values() else "text"
        if name:
            arguments, rest = _whole_arguments(block, openings[name])
        is_at_end = self._is_ended and not rest
        if arguments and (is_at_end or (fence[1] and rest.startswith(_FENCE_END))):
            self._text = rest[len(_FENCE_END) :]
            self._read_more = self._read_space
            self._fences = self._fences if self._is_parallel else []
            yield CallBegin(self._new_id(self._style), name)
            yield CallArguments(arguments)
        elif self._is_ended or (rest and not (fence[1] and _FENCE_END.startswith(rest))):
            self._text = block
            self._read_more = self._read_content
            if fence[0]:
                yield Content(fence[0], place)

    def _read_head(self) -> Iterator[Part]:
        assert self._style is not None
        head = re.search(self._style.head(f"({NAME})"), self._text)
        if head is not None:
            self._text = self._text[head.end() :]
            self._arguments = BareArguments(self._style.quote) if self._style.quote else JsonArguments()
            if self._style.tags is not None:
                self._arguments = TaggedArguments(self._style.tags, self._functions.get(head[1]))
            self._read_more = self._read_arguments
            yield CallBegin(self._new_id(self._style), head[1])

    def _read_arguments(self) -> Iterator[Part]:
        piece, self._text = self._arguments.read(self._text)
        if piece:
            yield CallArguments(piece)
        if self._arguments.is_done:
            self._read_more = self._read_head

    def _take_until(self, *marks: str) -> tuple[str, str]:
        """Return text up to the first mark, without spaces before it, and the mark; "" if none follows yet.

        The spaces, and what may still become spaces and a mark, are held back.
        """
        places = {place: mark for mark in marks if (place := self._text.find(mark)) >= 0}
        place, found = min(places.items(), default=(0, ""))
        if not found and self._is_ended:
            piece, self._text = self._text, ""
            return piece, found
        if not found:
            place = min(len(divided(self._text, mark)[0]) for mark in marks)
        piece = self._text[:place].rstrip()
        self._text = self._text[len(piece) :]
        return piece, found


def _whole_arguments(block: str, opening: list[str]) -> tuple[str, str]:
    """Return the arguments of the call that a text begins with, and what follows it; "" may become one."""
    head = re.match(r"\s*" + "".join(rf"{re.escape(piece)}\s*" for piece in opening), block)
    assert head is not None
    try:
        # NaN is no JSON, and int() refuses it.
        found, end = json.JSONDecoder(parse_constant=int).raw_decode(block, head.end())
    except (ValueError, RecursionError):
        return "", "text" if f"\n{_FENCE_END}" in block else ""
    rest = block[end:].lstrip()
    if not isinstance(found, dict) or (rest and not rest.startswith("}")):
        return "", "text"
    return (block[head.end() : end], rest[1:].lstrip()) if rest else ("", "")


def _begins_with(text: str, pieces: list[str]) -> bool | None:
    """Return whether a text begins with these pieces and any spaces; None if it is too short to know."""
    for piece in pieces:
        text = text.lstrip()
        if not text.startswith(piece):
            return None if piece.startswith(text) else False
        text = text[len(piece) :]
    return True
