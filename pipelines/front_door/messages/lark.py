r"""Writes grammars in llguidance's form of Lark.

Free text is a terminal that excludes a mark, and text that ends with the mark is one that contains it only
there, ``/(?s:.*)MARK/ & ~/(?s:.*)MARK(?s:.+)/``. Special tokens are written by their ids, ``<[5]>``.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pipelines.errors import InvalidRequestError
from pipelines.text.guides import MAX_GUIDE_BYTES

ANY = "(?s:.*)"

SPACE = r"[ \n\r\t]{0,2}"
"""Spaces between the parts of a call: a line feed or two; models have written many where they could."""


class Rules:
    """The rules and terminals of one grammar.

    Attributes:
        lines: Lines of the grammar.
        special: Ids of the marks that are special tokens.

    Args:
        special: See above.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self.special = special
        self._num_bytes = 0

    def add(self, name: str, body: str) -> None:
        """Add a rule or a terminal.

        Raises:
            InvalidRequestError: The grammar is longer than a guide may be.
        """
        self.check_length(body)
        self._num_bytes += len(body)
        self.lines.append(f"{name}: {body}")

    def check_length(self, added: str) -> None:
        """Refuse more than a guide may have, before it is written."""
        if self._num_bytes + len(added) > MAX_GUIDE_BYTES:
            raise InvalidRequestError(
                f"the grammar of the answer is too long: more than {MAX_GUIDE_BYTES} bytes",
                "send simpler schemas, with fewer references to large ones, or fewer tools",
            )

    def literal(self, mark: str) -> str:
        """Return the item for a mark, behind a few spaces if it is text."""
        special = self.special_begin(mark)
        if special is None:
            return rf"/{SPACE}{escaped(mark)}/"
        rest = mark[len(special) :]
        return f"<[{self.special[special]}]>" + (f" {json.dumps(rest)}" if rest else "")

    def special_begin(self, mark: str) -> str | None:
        """Return the special token that a mark begins with; None if it is text."""
        return next((name for name in self.special if mark.startswith(name)), None)


def without(excluded: Sequence[str], included: str = ANY) -> str:
    """Return the terminal for text that matches one regular expression and none of the others."""
    return " & ".join([f"/{included}/", *(f"~/{each}/" for each in excluded)])


def escaped(text: str) -> str:
    """Return a regular expression for a text, inside slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
