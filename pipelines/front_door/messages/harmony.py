"""Plans and reads answers of gpt-oss, which are messages of their own for thoughts, calls and the text.

Source: https://github.com/openai/harmony, the format of its messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pipelines.front_door.messages.answer_format import GuideTensors, lark_of
from pipelines.front_door.messages.arguments import JsonArguments
from pipelines.front_door.messages.message import CallBegin, Content, Part
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import HARMONY, HARMONY_MARKS, NAME, MessageStyle, Thinking
from pipelines.front_door.messages.tools import Calling, schema_of

CHANNEL, MESSAGE, END, START, CONSTRAIN, _ = HARMONY_MARKS


def harmony_guide(
    style: MessageStyle, calling: Calling | None, content: GuideTensors | None
) -> GuideTensors | None:
    """Return the guide of an answer: any thoughts and remarks, then a text or one call; None without limits.

    Args:
        style: How the model writes messages.
        calling: The functions that it may call; None for none.
        content: The guide of its text; None for free text.

    Raises:
        InvalidRequestError: The content's guide is a grammar itself.
    """
    if calling is None and content is None:
        return None
    channel, message, end, start, constrain, _ = (f"<[{style.special[mark]}]>" for mark in HARMONY_MARKS)
    answers = []
    if calling is None or calling.mode != "required":
        text = "TEXT?" if content is None else f"({lark_of(content)})"
        answers.append(f'{channel} "final" {message} {text}')
    for function in calling.functions if calling is not None and calling.mode != "none" else ():
        to = json.dumps(f" to=functions.{function.name}")
        head = f'({to} {channel} "commentary" | {channel} "commentary" {to}) (" "? {constrain}? "json")?'
        answers.append(f"{head} {message} %json {schema_of(function)}")
    rules = [
        "start: before* answer",
        f'before: {channel} ("analysis" | "commentary") {message} TEXT? {end} {start} "assistant"',
        f"answer: {' | '.join(answers)}",
        "TEXT: /(?s:.+)/",
    ]
    return ("lark_grammar", "\n".join(rules) + "\n")


class HarmonyReader(MessageReader):
    """Reads an answer that is several messages.

    Args:
        thinking: Whether the text begins with the head of a message, or inside one.
    """

    def __init__(self, thinking: Thinking) -> None:
        super().__init__(thinking, HARMONY, thoughts=("", END))
        self._read_more = {
            Thinking.NONE: self._read_content,
            Thinking.POSSIBLE: self._read_head,
            Thinking.BEGUN: self._read_thoughts,
        }[thinking]

    def _read_begin(self) -> Iterator[Part]:
        self._read_more = self._read_head
        yield from ()

    def _read_head(self) -> Iterator[Part]:
        head, found, rest = self._text.partition(MESSAGE)
        if not found:
            return
        self._text = rest
        self._read_more = self._read_thoughts if f"{CHANNEL}analysis" in head else self._read_content
        if (name := re.search(rf" to=functions\.({NAME})", head)) is not None:
            self._arguments, self._read_more = JsonArguments(), self._read_arguments
            yield CallBegin(self._new_id(HARMONY), name[1])

    def _read_content(self) -> Iterator[Part]:
        place = self._num_received - len(self._text)
        piece, is_whole = self._take_until(END)
        if piece:
            yield Content(piece, place)
        if is_whole:
            self._text = self._text.removeprefix(END)
            self._read_more = self._read_head
