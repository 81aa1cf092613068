"""Reads an answer of an OpenAI-compatible server while its bytes pass through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pipelines.openai_stream import AnswerReader, Choice, Event, UnreadableError, join
from pipelines.router.observation import Difference

CHARACTERS_PER_TOKEN = 4
"""Length of a token where the server does not count them; both servers are then counted alike."""

_DIFFERENCES: tuple[Difference, ...] = ("tokens", "text", "finish_reason", "sequence_length")
_TEXTS = ("text", "reasoning", "refusal")


class Answer:
    """Keeps what a server has answered so far.

    Attributes:
        fault: What is wrong with it, in words; "" if nothing is so far. Such an answer counts as none.
        has_token: Whether something of the answer has come, rather than its frame alone.
        model: Model that answered, as the server says; "" if it does not.
        first_at_s: When the first token came; None before, and for an answer in one piece.
        longest_pause_s: Longest time between two tokens of a stream; None before the second.

    Args:
        is_stream: Whether it comes as events, rather than in one piece.
        has_items: Whether it is one of ``/v1/responses``.
        clock: Returns the unix time.
    """

    def __init__(self, *, is_stream: bool, clock: Callable[[], float], has_items: bool = False) -> None:
        self.fault = ""
        self.has_token = False
        self.model = ""
        self.first_at_s: float | None = None
        self.longest_pause_s: float | None = None
        self._is_stream = is_stream
        self._clock = clock
        self._latest_at_s = 0.0
        self._reader = AnswerReader(is_stream=is_stream, has_items=has_items)
        self._num_counted = 0
        self._choices: dict[int, Choice] = {}

    def read(self, data: bytes) -> None:
        """Read the next bytes; none after a fault."""
        if not self.fault:
            self._add_all(self._reader.read(data))

    def end(self) -> None:
        """Note that there are no more bytes."""
        if not self.fault:
            self._add_all(self._reader.end())
        if not self._choices or any(not choice.finish_reason for choice in self._choices.values()):
            self.cut("an answer that did not finish")

    def cut(self, why: str) -> None:
        """Note that no more bytes come, though there should be."""
        self.fault = self.fault or why

    @property
    def num_unread(self) -> int:
        """Bytes that wait for the rest of their line, or of the answer."""
        return self._reader.num_unread

    @property
    def num_tokens(self) -> int:
        """Tokens as the server counts them, else estimated by the number of characters."""
        num_characters = sum(map(len, map(_whole_text, self._choices.values())))
        return self._num_counted or -(-num_characters // CHARACTERS_PER_TOKEN)

    @property
    def whole_text(self) -> str:
        """Text of all choices."""
        return "\n".join(_whole_text(choice) for _, choice in sorted(self._choices.items()))

    def compared(self, what: str) -> Any:
        """Return what must be equal in two answers; None for what the server does not tell.

        Args:
            what: ``tokens``, ``text``, ``finish_reason`` or ``sequence_length``.
        """
        if what == "sequence_length":
            return self._num_counted or None
        choices = sorted(self._choices.items())
        if what == "tokens":
            has_ids = any(choice.token_ids is not None for _, choice in choices)
            return [choice.token_ids for _, choice in choices] if has_ids else None
        if what == "finish_reason":
            return [(index, choice.finish_reason) for index, choice in choices]
        names = (*_TEXTS, "streamed")
        return [(index, [*map(choice.text, names)], choice.tool_calls) for index, choice in choices]

    def _add_all(self, events: Iterable[Event]) -> None:
        try:
            for event in events:
                self._add(event)
        except UnreadableError as error:
            self.cut(error.fault)

    def _add(self, event: Event) -> None:
        if event.error:
            self.cut("an error instead of an answer")
        self.model = self.model or event.model
        self._num_counted = event.num_tokens or self._num_counted
        join(self._choices, event)
        if event.finish_reason or any(delta.says_anything or delta.finish_reason for delta in event.deltas):
            self._note_token()

    def _note_token(self) -> None:
        self.has_token = True
        if not self._is_stream:
            return
        now_s = self._clock()
        if self.first_at_s is None:
            self.first_at_s = now_s
        else:
            self.longest_pause_s = max(self.longest_pause_s or 0.0, now_s - self._latest_at_s)
        self._latest_at_s = now_s


def first_difference(expected: Answer, answer: Answer) -> Difference:
    """Return the first thing in which two answers differ; "" if they are equal.

    What one server does not tell, such as token ids, cannot differ.
    """
    for what in _DIFFERENCES:
        both = expected.compared(what), answer.compared(what)
        if None not in both and both[0] != both[1]:
            return what
    return ""


def _whole_text(choice: Choice) -> str:
    calls = (call.name + call.arguments for call in choice.tool_calls.values())
    return "".join((*map(choice.text, _TEXTS), *calls))
