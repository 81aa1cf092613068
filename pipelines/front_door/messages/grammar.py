"""Plans an answer with thoughts, tool calls or a structured answer: its Lark grammar, and how it is read.

The grammar begins with the answer and covers all of it: free text, up to the mark behind which it limits the
tokens. So it remains a function of the output so far, and the answer with a draft is that of the target alone
(``docs/decisions/sampling.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import ChatTemplateError, InvalidRequestError
from pipelines.front_door.messages.answer_format import GuideParts, lark_of
from pipelines.front_door.messages.call_styles.call_style import CallStyle
from pipelines.front_door.messages.call_styles.harmony import HARMONY, HarmonyReader, harmony_guide
from pipelines.front_door.messages.lark import ANY, SPACE, Rules, escaped, without
from pipelines.front_door.messages.message import THINK_BEGIN, THINK_END, Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import CALL_STYLES, MessageStyle
from pipelines.front_door.messages.tools import Calling, Function, schema_of


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
    content: GuideParts | None

    def __post_init__(self) -> None:
        if self.calling is not None and self.style.calls is None:
            tools = ", ".join(function.name for function in self.calling.functions)[:200]
            styles = ", ".join(style.name for style in (*CALL_STYLES, HARMONY))
            raise ChatTemplateError(
                f"tools={tools} cannot be called: the model's chat template writes calls as none of {styles}",
                "serve a model with such a template, or leave tools out",
            )

    @property
    def has_special_marks(self) -> bool:
        """Whether the answer is read by names of special tokens, so that its text must have them."""
        return bool(self.style.special_marks(with_calls=self._calls is not None))

    def guide(self, thinking: Thinking) -> GuideParts | None:
        """Return the guide of an answer; None if nothing limits it.

        Args:
            thinking: Whether thoughts come before the answer.

        Raises:
            InvalidRequestError: The content's guide cannot stand behind thoughts or beside tools, a strict
                schema cannot be enforced, a schema is too long, or a text of gpt-oss goes on that must be a
                call.
        """
        if self.style.calls is HARMONY:
            return harmony_guide(self.style.special, thinking, self.calling, self.content)
        if self.calling is None and (self.content is None or thinking is Thinking.NONE):
            return self.content
        return (
            "lark_grammar",
            "\n".join(_Writer(self.style, thinking).lines(self.calling, self.content)) + "\n",
        )

    def new_reader(self, thinking: Thinking) -> MessageReader:
        """Return a reader of one answer."""
        functions = self.calling.functions if self.calling is not None and self._calls is not None else ()
        if self.style.calls is HARMONY:
            return HarmonyReader(thinking, functions)
        is_structured = self.content is not None or self.calling is None or self.calling.mode == "required"
        return MessageReader(
            thinking,
            self._calls,
            thoughts=self.style.thoughts,
            functions=functions,
            is_structured=is_structured,
            is_parallel=self.calling is None or self.calling.is_parallel,
        )

    @property
    def _calls(self) -> CallStyle | None:
        """How the answer calls functions, if it may."""
        return self.style.calls if self.calling is not None and self.calling.mode != "none" else None


class _Writer:
    """Writes the grammar of one answer."""

    def __init__(self, style: MessageStyle, thinking: Thinking) -> None:
        self._rules = Rules(style.special)
        self._style = style
        self._thinking = thinking
        self._think_begin, self._think_end = style.thoughts or (THINK_BEGIN, THINK_END)

    def lines(self, calling: Calling | None, content: GuideParts | None) -> list[str]:
        """Return the rules of an answer; see ``AnswerPlan``."""
        may_be_text = calling is None or calling.mode != "required"
        answers = []
        if may_be_text:
            answers.append(self._text(calling) if content is None else lark_of(content))
        if calling is not None and calling.mode != "none":
            assert self._style.calls is not None
            answers.append(self._calls(self._style.calls, calling, content))
        # Free text contains the spaces behind thoughts; a rule for them beside it would be ambiguous.
        gap = "" if content is None and may_be_text else "SPACE?"
        start = f"start: {self._thoughts(gap)} answer"
        self._rules.add("answer", " | ".join(answers))
        self._rules.add("SPACE", r"/[ \n\r\t]{1,4}/")
        return [start, *self._rules.lines]

    def _thoughts(self, gap: str) -> str:
        """Return the item for thoughts and the spaces behind them."""
        if self._thinking is Thinking.NONE:
            return ""
        until_end = f"{self._until(self._think_end, 'THOUGHTS')} {gap}"
        if self._thinking is Thinking.BEGUN:
            return until_end
        return f"({self._rules.literal(self._think_begin)} {until_end})?"

    def _text(self, calling: Calling | None) -> str:
        """Return the item for free text, in which nothing opens a call or thoughts."""
        style = self._style.calls
        excluded = []
        if self._thinking is Thinking.POSSIBLE:
            excluded.append(rf"\s*{escaped(self._think_begin)}{ANY}")
        if calling is not None and style is not None:
            excluded.append(f"{ANY}{escaped(style.mark)}{ANY}")
            for function in calling.functions if style.is_bare else ():
                opening = style.json_opening([function.name])
                excluded.append("".join(rf"\s*{escaped(piece)}" for [piece] in opening) + ANY)
        self._rules.add("TEXT", without(excluded))
        return "TEXT"

    def _calls(self, style: CallStyle, calling: Calling, content: GuideParts | None) -> str:
        """Return the item for tool calls with what stands before them."""
        if style.is_bare and content is not None and calling.mode == "auto":
            raise InvalidRequestError(
                f"response_format and tools cannot be told apart: in {style.name} both are bare JSON",
                'send tool_choice="required" or "none", or no response_format',
            )
        style.add_rules(self._rules)
        calls = [self._call(number, style, each) for number, each in enumerate(calling.functions)]
        self._rules.add("call", " | ".join(calls))
        mark = self._rules.literal(style.mark)
        if style.is_bare:
            return f"({mark})? call" if style.mark in self._style.special else "call"
        is_behind_text = calling.mode == "auto" and content is None
        first = self._until(style.mark, "BEFORE") if is_behind_text else mark
        if style.is_list:
            more = f" (/{SPACE},{SPACE}/ call)*" if calling.is_parallel else ""
            return rf"{first} /{SPACE}\[{SPACE}/ call{more} /{SPACE}\]/"
        more = f" ({mark} call)*" if calling.is_parallel else ""
        return f"{first} call{more}"

    def _call(self, number: int, style: CallStyle, function: Function) -> str:
        """Return the item for a call of one function."""
        self._rules.check_length(schema_of(function))
        if function.strict and (left_out := style.unenforced(function)):
            raise InvalidRequestError(
                f"the strict schema of the function {function.name} cannot be enforced whole in calls as "
                f"{style.name}: {', '.join(left_out)[:300]}",
                "leave these keywords out, or strict",
            )
        return style.call_rule(self._rules, number, function)

    def _until(self, mark: str, name: str) -> str:
        """Return the item for free text up to a mark and the mark itself."""
        thoughts = rf"\s*{escaped(self._think_begin)}{ANY}"
        excluded = [thoughts] if self._thinking is Thinking.POSSIBLE and mark != self._think_end else []
        if self._rules.special_begin(mark) is not None:
            self._rules.add(name, without([f"{ANY}{escaped(mark)}{ANY}", *excluded]))
            return f"{name}? {self._rules.literal(mark)}"
        self._rules.add(name, without([f"{ANY}{escaped(mark)}(?s:.+)", *excluded], ANY + escaped(mark)))
        return name
