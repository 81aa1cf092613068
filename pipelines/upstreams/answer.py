"""Reads an answer of an OpenAI-compatible server while its bytes pass through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pipelines.openai_stream import AnswerReader, Choice, Event, UnreadableError, join
from pipelines.router.observation import Difference, unix_time_s
from pipelines.router.received_answer import CHARACTERS_PER_TOKEN, ReceivedAnswer

_TEXTS = ("text", "reasoning", "refusal")


class Answer(ReceivedAnswer):
    """Keeps what a server has answered so far.

    Attributes:
        has_token: Whether something of the answer has come, rather than its frame alone.
        model: Model that answered, as the server says; "" if it does not.

    Args:
        is_stream: Whether it comes as events, rather than in one piece.
        has_items: Whether it is one of ``/v1/responses``.
        clock: Returns the unix time.
    """

    def __init__(
        self, *, is_stream: bool, has_items: bool = False, clock: Callable[[], float] = unix_time_s
    ) -> None:
        super().__init__(is_stream=is_stream, clock=clock)
        self.has_token = False
        self.model = ""
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
    def text(self) -> str:
        """Text of all choices."""
        return "\n".join(_whole_text(choice) for _, choice in sorted(self._choices.items()))

    def told(self, what: Difference) -> Any:
        """Return what must be equal in two answers; None for what the server does not tell."""
        if what == "sequence_length":
            return self._num_counted or None
        choices = sorted(self._choices.items())
        if what == "tokens":
            has_ids = any(choice.token_ids is not None for _, choice in choices)
            return [choice.token_ids for _, choice in choices] if has_ids else None
        if what == "finish_reason":
            return [(index, choice.finish_reason) for index, choice in choices]
        if what != "text":
            return None
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
            self.has_token = True
            self._note_part()


def _whole_text(choice: Choice) -> str:
    calls = (call.name + call.arguments for call in choice.tool_calls.values())
    return "".join((*map(choice.text, _TEXTS), *calls))
