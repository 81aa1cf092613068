"""Reads an answer of an OpenAI-compatible server while its bytes pass through."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.router.observation import Difference
from pipelines.upstreams.response_items import STREAMED, read_part

CHARACTERS_PER_TOKEN = 4
"""Length of a token where the server does not count them; both servers are then counted alike."""

_TEXTS = ("text", "content", "reasoning", "reasoning_content", "refusal")
_MOST_BYTES = 64 << 20  # of an answer in one piece
_MOST_LINE_BYTES = 16 << 20  # of a stream; the last event of a response has all of it
_DONE = "[DONE]"
_DIFFERENCES: tuple[Difference, ...] = ("tokens", "text", "finish_reason", "sequence_length")
_FIELDS = (b":", b"event", b"id", b"retry")  # of server-sent events, beside data


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
        self._has_items = has_items
        self._clock = clock
        self._latest_at_s = 0.0
        self._unread = bytearray()
        self._is_done = False
        self._has_other_lines = False  # such as those of a page
        self._num_counted = 0
        self._choices: dict[int, dict[str, Any]] = {}

    def read(self, data: bytes) -> None:
        """Read the next bytes."""
        self._unread += data
        if self._is_stream and b"\n" in data:
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                self._read_line(bytes(line).strip())
        if self.num_unread > (_MOST_LINE_BYTES if self._is_stream else _MOST_BYTES):
            self._find("an endless answer")
            self._unread.clear()

    def _read_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._read_event(line.removeprefix(b"data:").strip())
        elif line and not line.startswith(_FIELDS):
            self._has_other_lines = True

    def end(self) -> None:
        """Note that there are no more bytes."""
        if not self._is_stream:
            self._read_document(bytes(self._unread))
        elif not self._is_done:
            is_garbage = not self._choices and (self._has_other_lines or bool(self._unread))
            self._find("garbage" if is_garbage else "a stream that ended early")
        if not self._choices or any(not each.get("finish_reason") for each in self._choices.values()):
            self._find("an answer that did not finish")

    def cut(self, why: str) -> None:
        """Note that no more bytes come, though there should be."""
        self._find(why)

    @property
    def num_unread(self) -> int:
        """Bytes that wait for the rest of their line, or of the answer."""
        return len(self._unread)

    @property
    def num_tokens(self) -> int:
        """Tokens as the server counts them, else estimated by the number of characters."""
        num_characters = sum(len(self.text(index)) for index in self._choices)
        return self._num_counted or -(-num_characters // CHARACTERS_PER_TOKEN)

    @property
    def whole_text(self) -> str:
        """Text of all choices."""
        return "\n".join(self.text(index) for index in sorted(self._choices))

    def text(self, index: int) -> str:
        """Return the text of one choice."""
        choice = self._choices[index]
        texts = [choice.get(name, "") for name in _TEXTS]
        return "".join((*texts, *(name + arguments for name, arguments in _calls(choice))))

    def compared(self, what: str) -> Any:
        """Return what must be equal in two answers; None for what the server does not tell.

        Args:
            what: ``tokens``, ``text``, ``finish_reason`` or ``sequence_length``.
        """
        if what == "sequence_length":
            return self._num_counted or None
        choices = sorted(self._choices.items())
        if what == "tokens":
            has_ids = any("token_ids" in choice for _, choice in choices)
            return [choice.get("token_ids") for _, choice in choices] if has_ids else None
        read: dict[str, Callable[[dict[str, Any]], Any]] = {
            "text": lambda choice: ([choice.get(name, "") for name in (*_TEXTS, STREAMED)], _calls(choice)),
            "finish_reason": lambda choice: choice.get("finish_reason"),
        }
        return [(index, read[what](choice)) for index, choice in choices]

    def _read_event(self, data: bytes) -> None:
        if data == _DONE.encode():
            self._is_done = True
        else:
            self._read_document(data)

    def _read_document(self, data: bytes) -> None:
        try:
            document = json.loads(data)
            if not isinstance(document, dict):
                raise ValueError("not an object")
            if document.get("error"):
                self._find("an error instead of an answer")
                return
            self._add(self._in_chats_words(document) if self._has_items else document)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            self._find("garbage")

    def _in_chats_words(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a part of a response as a chat has it; its last event is what ``[DONE]`` is to a chat."""
        part = read_part(document)
        if part.has_failed:
            self._find("an error instead of an answer")
        if part.end:
            self._is_done = True
            for choice in self._choices.values():
                choice["finish_reason"] = part.end
        return part.document

    def _add(self, document: Mapping[str, Any]) -> None:
        self.model = self.model or str(document.get("model") or "")
        usage = document.get("usage") or {}
        self._num_counted = int(usage.get("completion_tokens") or self._num_counted)
        has_token = False
        for choice in document["choices"]:
            known = self._choices.setdefault(int(choice.get("index") or 0), {})
            part = choice.get("delta") or choice.get("message") or choice
            has_token |= _merge(known, part)
            known["finish_reason"] = choice.get("finish_reason") or known.get("finish_reason")
            if isinstance(choice.get("token_ids"), list):
                known.setdefault("token_ids", []).extend(choice["token_ids"])
            has_token |= bool(known["finish_reason"])
        if has_token:
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

    def _find(self, fault: str) -> None:
        self.fault = self.fault or fault


def first_difference(expected: Answer, answer: Answer) -> Difference:
    """Return the first thing in which two answers differ; "" if they are equal.

    What one server does not tell, such as token ids, cannot differ.
    """
    for what in _DIFFERENCES:
        both = expected.compared(what), answer.compared(what)
        if None not in both and both[0] != both[1]:
            return what
    return ""


def _merge(known: dict[str, Any], part: Mapping[str, Any]) -> bool:
    """Add a part of a choice; returns whether it says anything."""
    says_anything = False
    for name in (*_TEXTS, STREAMED):
        text = part.get(name) or ""
        if not isinstance(text, str):
            raise TypeError(f"{name} is no text")
        known[name] = known.get(name, "") + text
        says_anything |= bool(text)
    for number, call in enumerate(part.get("tool_calls") or ()):
        calls = known.setdefault("tool_calls", {})
        function = calls.setdefault(call.get("index", number), {"name": "", "arguments": ""})
        for name in function:
            function[name] += call["function"].get(name) or ""
        says_anything = True
    return says_anything


def _calls(choice: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    calls = choice.get("tool_calls", {})
    return [(call["name"], call["arguments"]) for _, call in sorted(calls.items())]
