"""Recognises calls that a model writes as JSON without the marks of its style, perhaps in a block.

A text is read as it arrives, and no character is looked at twice.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence

from pipelines.front_door.messages.call_styles.json_calls import JsonArguments

_SPACES = re.compile(r"\s*")


class Opening:
    """Tells whether a text has one piece of each list at a place, in order, with any spaces before each.

    Attributes:
        found: The pieces so far.
        begun: What may become the next one.
        place: Up to where the text was read.

    Args:
        pieces: The lists, each in the order of the alphabet; no piece begins with another one of its list.
        place: Where the first piece may stand.
    """

    def __init__(self, pieces: Sequence[Sequence[str]], place: int = 0) -> None:
        self.found: list[str] = []
        self.begun = ""
        self.place = place
        self._pieces = pieces
        self._fails = False

    def read(self, text: str) -> bool | None:
        """Return the answer; None if the text is too short to know.

        Args:
            text: The text so far.
        """
        while not self._fails and len(self.found) < len(self._pieces):
            if not self.begun:
                spaces = _SPACES.match(text, self.place)
                assert spaces is not None
                self.place = spaces.end()
            if self.place == len(text):
                return None
            self.begun += text[self.place]
            self.place += 1
            possible = self._pieces[len(self.found)]
            nearest = bisect_left(possible, self.begun)
            self._fails = nearest == len(possible) or not possible[nearest].startswith(self.begun)
            if not self._fails and possible[nearest] == self.begun:
                self.found.append(self.begun)
                self.begun = ""
        return not self._fails


class BareCalls:
    """Tells whether a text begins with calls as JSON: in a block, or one that is all of the text.

    Attributes:
        calls: Name and arguments of each, as far as they are read.
        end: Place behind the block; known if they are calls.

    Args:
        opening: What a call begins with, as for ``Opening``; its fourth piece is the name in quotes.
        fence: What stands around the block; None without one.
        is_parallel: Whether a block may have several calls.
    """

    def __init__(
        self, opening: Sequence[Sequence[str]], fence: tuple[str, str] | None, *, is_parallel: bool
    ) -> None:
        self.calls: list[tuple[str, str]] = []
        self.end = 0
        self._call = [*opening, ["{"]]
        self._opening = Opening(self._call if fence is None else [[fence[0]], *self._call])
        self._fence_end = "```" if fence is None else fence[1]
        more = ["{"] if is_parallel else []
        self._behind = [["}"], sorted([self._fence_end, *more]) if fence is not None else []]
        self._arguments: JsonArguments | None = None
        self._begin = self._seen = 0  # places in the arguments

    def read(self, text: str, *, is_ended: bool) -> bool | None:
        """Return the answer; None if the text is too short to know.

        Args:
            text: The text so far.
            is_ended: Whether it is whole.
        """
        while True:
            if self._arguments is not None and (is_object := self._read_arguments(text)) is not True:
                return False if is_ended else is_object
            begins = self._opening.read(text)
            if begins is None and is_ended:
                self.end = len(text)
                return self._opening.found == ["}"] and not self._opening.begun
            if begins is not True:
                return begins
            if self._opening.found[-1] == self._fence_end:
                self.end = self._opening.place
                return True
            if self._opening.found[0] == "}":
                self._opening = Opening(self._call, self._opening.place - 1)
            else:
                self._arguments = JsonArguments()
                self._begin = self._seen = self._opening.place - 1

    def _read_arguments(self, text: str) -> bool | None:
        """Return whether there is an object; None if the text is too short to know."""
        assert self._arguments is not None
        new = text[self._seen :]
        _, rest = self._arguments.read(new)
        looked_at, self._seen = self._seen, len(text) - len(rest)
        if not self._arguments.is_done:  # no JSON has a line that begins with the end of a block
            line = f"\n{self._fence_end}"
            return False if text.find(line, max(self._begin, looked_at - len(line) + 1)) >= 0 else None
        arguments = text[self._begin : self._seen]
        self.calls.append((self._opening.found[-5][1:-1], arguments))
        self._opening, self._arguments = Opening(self._behind, self._seen), None
        try:
            json.loads(arguments, parse_constant=int)  # NaN is no JSON, and int() refuses it
        except (ValueError, RecursionError):
            return False
        return True
