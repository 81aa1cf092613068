"""Tests that a chunk of an answer costs the reader what is new in it, however much it has held back."""

from __future__ import annotations

import time

import pytest

from pipelines.front_door.messages.call_styles.call_style import MOST_OPENING, CallStyle
from pipelines.front_door.messages.call_styles.harmony import HARMONY
from pipelines.front_door.messages.grammar import AnswerPlan
from pipelines.front_door.messages.message import Thinking
from pipelines.front_door.messages.style import CALL_STYLES, MessageStyle
from pipelines.front_door.messages.tools import Calling, Function
from tests.unit.front_door.messages.cases import HARMONY_IDS, written
from tests.unit.front_door.messages.test_harmony import CALL, THOUGHTS

ANY = {"type": "object", "properties": {"any": {}, "city": {"type": "string"}}}
TOOLS = (
    Function(name="get_weather", parameters=ANY),
    *(Function(name=f"{number}", parameters=ANY) for number in range(500)),
)
FILLERS = (" ", "x", "1,", "{},", "<", ": ", "`")
SHORT, LONG = 1 << 10, 1 << 15
CHUNKS, SIZE = 40, 4


def answers(style: CallStyle) -> list[str]:
    """Return answers with a call, whose beginnings lead the reader into all that it can be doing."""
    if style is HARMONY:
        return [THOUGHTS + CALL]
    called = written(style, ("get_weather", '{"any": "x", "city": [1, {"b": 2}]}'))
    bare = '{"name": "get_weather", "arguments": {"a": "x"}}'
    return [f"<think>a</think>b {called}", *(f"{begin}\n{bare}\n{end}" for begin, end in style.fences)]


def seconds(style: CallStyle, begun: str, filler: str, num_held: int) -> float:
    """Return the time of the last chunks of an answer; other threads and programs do not count."""
    plan = AnswerPlan(MessageStyle(style, None, HARMONY_IDS), Calling(TOOLS, "auto"), None)
    text = filler * (num_held // len(filler) + CHUNKS * SIZE)
    found = []
    for _ in range(3):
        reader = plan.new_reader(Thinking.POSSIBLE)
        reader.read(begun)
        reader.read(text[:num_held])
        began_s = time.thread_time()
        for place in range(num_held, num_held + CHUNKS * SIZE, SIZE):
            reader.read(text[place : place + SIZE])
        found.append(time.thread_time() - began_s)
    return min(found)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("style", [*CALL_STYLES, HARMONY], ids=lambda style: style.name)
def test_a_chunk_costs_no_more_behind_a_long_answer(style: CallStyle, filler: str) -> None:
    slow = {}
    for answer in answers(style):
        for end in range(0, len(answer) + 1, 9):
            ratio = seconds(style, answer[:end], filler, LONG) / seconds(style, answer[:end], filler, SHORT)
            if ratio > 16:
                slow[answer[:end]] = ratio
    assert not slow


@pytest.mark.parametrize("style", CALL_STYLES, ids=lambda style: style.name)
def test_no_head_of_a_call_is_longer_than_what_is_kept(style: CallStyle) -> None:
    call = written(style, ("f" * 64, '{"city": "x"}'))
    assert call.rindex("x") - 1 < MOST_OPENING - 30  # and with two spaces everywhere
