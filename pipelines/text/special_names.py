"""Keeps the names of special tokens in users' texts apart from those that a chat template writes.

``chat_rendering.py`` puts ``MARK`` behind every character of a name that stands in the template itself. All
other text is a user's, wherever the template puts it, so parts of it cannot join to a name either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

MARK = "\ufdd0"
"""A noncharacter of Unicode, which no text should contain. Users' texts lose it before they are rendered."""

# Phi and GLM write `<|`, the role and `|>`.
_ROLES = "system|developer|user|assistant|model|tool|function|observation|ipython"
_ROLE_IN_A_NAME = re.compile(f"(?<={MARK})(?:{_ROLES})(?=.{MARK})", re.DOTALL)


def mark_user_names(rendered: str, names: Sequence[str]) -> str:
    """Return a rendered text in which ``MARK`` splits each name that the template has not written alone.

    Args:
        rendered: Text with ``MARK`` behind the characters of the template's names.
        names: Names of all special tokens.
    """
    rendered = _ROLE_IN_A_NAME.sub(lambda role: MARK.join(role[0]) + MARK, rendered)
    pieces = rendered.split(MARK)
    text = "".join(pieces)
    is_template = bytearray(len(text))
    end = 0
    for piece in pieces[:-1]:
        end += len(piece)
        if end:  # a template may have cut off what the first mark belongs to
            is_template[end - 1] = 1
    cuts = set()
    for name in names:
        begin = text.find(name)
        while begin >= 0:
            end = begin + len(name)
            of_user = is_template.find(0, begin, end)
            if of_user >= 0:  # the cut touches this character, so it splits no name of the template
                cuts.add(of_user if begin < of_user == end - 1 else of_user + 1)
            begin = text.find(name, begin + 1)
    return MARK.join(text[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(text)]))
