"""Plans and reads answers of gpt-oss, which are messages of their own for thoughts, calls and the text.

Source: https://github.com/openai/harmony, the format of its messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from pipelines.front_door.messages.answer_format import GuideParts, lark_of
from pipelines.front_door.messages.call_styles.json_calls import JsonArguments, JsonCalls
from pipelines.front_door.messages.message import CallBegin, Content, Part, Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.tools import NAME, Calling, Function, schema_of, wrong_choice

HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>")
CHANNEL, MESSAGE, END, START, CONSTRAIN, _ = HARMONY_MARKS

HARMONY = JsonCalls(
    name="harmony",
    signs=(r"<\|channel\|>", r"functions\.", r"<\|call\|>"),
    mark="".join(HARMONY_MARKS),
)
HARMONY_THOUGHTS = (f"{CHANNEL}analysis{MESSAGE}", END)


def harmony_guide(
    special: Mapping[str, int], thinking: Thinking, calling: Calling | None, content: GuideParts | None
) -> GuideParts | None:
    """Return the guide of an answer: any thoughts and remarks, then a text or one call; None without limits.

    Args:
        special: Ids of the marks.
        thinking: Whether the answer begins with the head of a message, or inside thoughts or a text.
        calling: The functions that it may call; None for none.
        content: The guide of its text; None for free text.

    Raises:
        InvalidRequestError: The content's guide is a grammar itself, or a text that goes on must be a call.
    """
    if thinking is Thinking.NONE and calling is not None and calling.mode == "required":
        raise wrong_choice(calling.mode, "auto or none, where continue_final_message continues a text")
    if thinking is Thinking.NONE or (calling is None and content is None):
        return content
    channel, message, end, start, constrain, _ = (f"<[{special[mark]}]>" for mark in HARMONY_MARKS)
    answers = []
    if calling is None or calling.mode != "required":
        text = "TEXT?" if content is None else f"({lark_of(content)})"
        answers.append(f'{channel} "final" {message} {text}')
    for function in calling.functions if calling is not None and calling.mode != "none" else ():
        to = json.dumps(f" to=functions.{function.name}")
        head = f'({to} {channel} "commentary" | {channel} "commentary" {to}) (" "? {constrain}? "json")?'
        answers.append(f"{head} {message} %json {schema_of(function)}")
    begun = f'TEXT? {end} {start} "assistant" ' if thinking is Thinking.BEGUN else ""
    channels = '"analysis" | "commentary"' if content is None else '"analysis"'  # a remark is text, too
    rules = [
        f"start: {begun}before* answer",
        f'before: {channel} ({channels}) {message} TEXT? {end} {start} "assistant"',
        f"answer: {' | '.join(answers)}",
        "TEXT: /(?s:.+)/",
    ]
    return ("lark_grammar", "\n".join(rules) + "\n")


class HarmonyReader(MessageReader):
    """Reads an answer that is several messages.

    Args:
        thinking: Whether the text begins with the head of a message, or inside one.
        functions: The functions that may be called; what is sent to others is text.
    """

    def __init__(self, thinking: Thinking, functions: Sequence[Function]) -> None:
        super().__init__(thinking, HARMONY, thoughts=("", END), functions=functions)
        self._has_text = self._is_behind_text = False  # the text of an earlier message
        if thinking is not Thinking.BEGUN:
            self._read_more = self._read_content if thinking is Thinking.NONE else self._read_head

    def _read_begin(self) -> Iterator[Part]:
        self._read_more = self._read_head
        yield from ()

    def _read_head(self) -> Iterator[Part]:
        self._is_behind_text = self._has_text
        end = self._text.find(MESSAGE, max(0, self._seen - len(MESSAGE)))
        head = self._text if end < 0 else self._text[:end]
        self._seen = len(head)
        if end < 0:
            if self._is_ended and not (head.startswith(HARMONY_MARKS) or " to=".startswith(head[:4])):
                self._read_more = self._read_content
            return
        self._text = self._text[end + len(MESSAGE) :]
        self._read_more = self._read_thoughts if f"{CHANNEL}analysis" in head else self._read_content
        if (name := re.search(rf" to=functions\.({NAME})", head)) and name[1] in self._functions:
            self._arguments, self._read_more = JsonArguments(), self._read_arguments
            yield CallBegin(self._new_id(), name[1])

    def _read_content(self) -> Iterator[Part]:
        piece, is_whole = self._take_until(END)
        if piece:
            if self._is_behind_text:
                yield Content("\n\n")
            self._has_text, self._is_behind_text = True, False
            yield Content(piece)
        if is_whole:
            self._text = self._text.lstrip().removeprefix(END)
            self._read_more = self._read_head
