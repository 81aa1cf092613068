"""Plans an answer: what it may have, how it is limited and how it is read."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import ChatTemplateError
from pipelines.front_door.messages.answer_format import GuideTensors
from pipelines.front_door.messages.grammar import guide_of_answer
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import (
    ARGS,
    CALL_ID,
    CALL_STYLES,
    THINK_BEGIN,
    THINK_END,
    CallStyle,
    MessageStyle,
    Thinking,
)
from pipelines.front_door.messages.tools import Calling


@dataclass(frozen=True)
class AnswerPlan:
    """The parts that an answer may have.

    Attributes:
        style: How the model writes messages.
        calling: The functions that it may call; None for none.
        content: The guide of its text; None for free text.

    Raises:
        ChatTemplateError: The request has tools, and how the model calls them is unknown.
    """

    style: MessageStyle
    calling: Calling | None
    content: GuideTensors | None

    def __post_init__(self) -> None:
        if self.calling is not None and self.style.calls is None:
            raise ChatTemplateError(
                "the model calls no tools",
                values=f"tools={', '.join(function.name for function in self.calling.functions)[:200]}",
                limit="a chat template that writes calls as one of "
                + ", ".join(known.name for known in CALL_STYLES),
                remedy="serve a model with such a template, or leave tools out",
            )

    @property
    def has_special_marks(self) -> bool:
        """Whether the answer is read by names of special tokens, so that its text must have them."""
        marks = [THINK_BEGIN, THINK_END] if self.style.can_think else []
        if self._calls is not None:
            marks += [self._calls.mark, self._calls.end, CALL_ID, ARGS]
        return any(mark in self.style.special for mark in marks)

    def guide(self, thinking: Thinking) -> GuideTensors | None:
        """Return the guide of an answer that begins with these thoughts.

        Raises:
            InvalidRequestError: The form of the text cannot stand behind thoughts or beside tools.
        """
        return guide_of_answer(self.style, thinking, self.calling, self.content)

    def new_reader(self, thinking: Thinking) -> MessageReader:
        """Return a reader of one answer."""
        is_structured = self.content is not None or self.calling is None or self.calling.mode == "required"
        return MessageReader(thinking, self._calls, is_structured=is_structured)

    @property
    def _calls(self) -> CallStyle | None:
        """How the answer calls functions, if it may."""
        return self.style.calls if self.calling is not None and self.calling.mode != "none" else None
