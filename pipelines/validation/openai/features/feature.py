"""Defines a feature of requests: the questions that use it, and how their answers can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.command_line.chat_messages import json_of_messages, last_content
from pipelines.command_line.prompts import Prompt
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.questions import Question


@dataclass(frozen=True)
class Material:
    """Prompts and answers of which questions are made.

    Attributes:
        prompts: Prompts of the comparison.
        answers: Plain greedy answer of the control to each of them; None where it has none.
        max_tokens: Most tokens of a plain answer.
        chat: Whether the control answers conversations.
        completions: Whether it continues texts.
    """

    prompts: Sequence[Prompt]
    answers: Sequence[Answer | None]
    max_tokens: int
    chat: bool
    completions: bool

    def text(self, number: int) -> str:
        """Return a prompt's text, or the last message of a conversation."""
        prompt = self.prompts[number]
        return last_content(prompt.messages) if prompt.messages else prompt.text

    def named(self, number: int, feature: str, text: str) -> Prompt:
        """Return a text as the prompt of a question about a feature."""
        return Prompt(f"{self.prompts[number].prompt_id}, {feature}", text)


Way = Callable[[Material, int], Question | None]
"""(material, number of a prompt) -> a question; None if that prompt gives none."""


@dataclass(frozen=True)
class Feature:
    """A feature of requests.

    Attributes:
        name: Name in reports.
        ways: Ways to ask for it; the first that the control follows is taken.
        fault: Returns what is wrong with an answer, whatever another server says; "" if it keeps the rules.
        tokens_may_go_on: Whether an answer may have tokens behind the end of its text.
    """

    name: str
    ways: tuple[Way, ...]
    fault: Callable[[Question, Answer], str]
    tokens_may_go_on: bool = False


WITHOUT_THOUGHTS: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""Fields that many chat templates know; long thoughts would leave no tokens for the answer."""


def chat_question(
    feature: str, material: Material, number: int, instruction: str, max_tokens: int, **fields: Any
) -> Question:
    """Ask in a conversation for something about the text of a prompt."""
    content = f"{instruction}\n\n{material.text(number)}"
    messages = json_of_messages([{"role": "user", "content": content}])
    prompt = Prompt(f"{material.prompts[number].prompt_id}, {feature}", "", messages=messages)
    return Question(prompt, max_tokens, feature, fields)
