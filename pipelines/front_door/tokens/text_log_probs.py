"""Finds the log probabilities of a message's text among those of all tokens of an answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pipelines.client.generation import Chunk
from pipelines.front_door.messages.parts import Content
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.tokens.log_probs import chat_log_probs
from pipelines.front_door.tokens.texts import texts_of_tokens

LogProbsOfTokens = list[dict[str, Any]]
"""For each token what OpenAI's API says of it: its text, bytes, log probability, and alternatives."""


@dataclass
class _Stretch:
    """Tokens without characters and the one behind them, or those without at the end of the answer.

    Attributes:
        begin: Characters of the answer before it.
        end: Characters up to its end.
        tokens: The log probabilities.
    """

    begin: int
    end: int
    tokens: LogProbsOfTokens = field(default_factory=list)


class TextLogProbs:
    """Hands out the log probabilities of one answer, chunk by chunk, with the pieces of its text.

    A token belongs to the text if one of its characters does. A token without characters, such as the first
    one of a character, belongs where the next one does, and at the end of the answer where the last one does.

    Args:
        model: The model.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._stretches: deque[_Stretch] = deque()
        self._open = _Stretch(0, 0)
        self._ends_with_text = False

    def add(self, chunk: Chunk) -> None:
        """Add the tokens of a chunk, before its text is read."""
        tokens = chat_log_probs(self._model, chunk.output_ids, chunk.log_probs, chunk.top_log_probs)[
            "content"
        ]
        for text, token in zip(texts_of_tokens(self._model, chunk), tokens, strict=True):
            self._open.tokens.append(token)
            if text:
                self._open.end += len(text)
                self._stretches.append(self._open)
                self._open = _Stretch(self._open.end, self._open.end)

    def take(self, content: Content) -> LogProbsOfTokens:
        """Return those of the next piece of the text."""
        end = content.place + len(content.text)
        taken: LogProbsOfTokens = []
        while self._stretches and self._stretches[0].begin < end:
            stretch = self._stretches.popleft()
            self._ends_with_text = stretch.end > content.place
            if self._ends_with_text:
                taken += stretch.tokens
        return taken

    def rest(self) -> LogProbsOfTokens:
        """Return those behind the last piece of the text, after the end of the answer."""
        return self._open.tokens if self._ends_with_text and not self._stretches else []
