"""Reads answers of OpenAI-compatible servers: bytes in, typed parts of the answer out.

Everything that asks such a server reads with it: whole answers and streams of ``/v1/completions``,
``/v1/chat/completions`` and ``/v1/responses``. Each byte is read once, and there is a limit to them. What is
not in OpenAI's form is an error.

::

    reader = AnswerReader(is_stream=True)
    choices: dict[int, Choice] = {}
    for data in response.iter_bytes():
        for event in reader.read(data):
            join(choices, event)
    for event in reader.end():
        join(choices, event)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

MOST_EVENT_BYTES = 16 << 20  # the last event of a response has all of it
MOST_ANSWER_BYTES = 64 << 20
MOST_STREAM_BYTES = 1 << 30

Fault = Literal["garbage", "an endless answer", "a stream that ended early"]
GARBAGE, ENDLESS, ENDED_EARLY = get_args(Fault)

_LONGEST_EXCERPT = 200  # characters of what a server sent
_FIELDS = (b":", b"event", b"id", b"retry")  # of server-sent events, beside data
_LAST_ITEM_EVENTS = ("response.completed", "response.incomplete")
_FAILURES = ("response.failed", "error")


class UnreadableError(Exception):
    """What a server sent cannot be read as an answer.

    Attributes:
        fault: What is wrong with it, in words.
        detail: What the server sent, and where it went wrong; "" if nothing more is known.
    """

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(f"{fault}: {detail}" if detail else fault)
        self.fault = fault
        self.detail = detail


@dataclass(frozen=True)
class TokenLogProbs:
    """Log probabilities at one token; names of tokens are their texts, or ``token_id:<id>``.

    Attributes:
        token: Name of the token.
        log_prob: Its natural log probability; NaN where there is none, as for the first token of a prompt.
        alternatives: Names and log probabilities of the likeliest tokens there.
    """

    token: str
    log_prob: float
    alternatives: Mapping[str, float]


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, or a part of one; its id is random and left out.

    Attributes:
        name: Name of the function.
        arguments: Its arguments as the model wrote them.
    """

    name: str
    arguments: str


@dataclass(frozen=True)
class Delta:
    """What an event adds to one choice, or to one output item of a response.

    Attributes:
        index: Number of the choice.
        text: Text.
        reasoning: What the model thought before its answer, if the server separates it.
        refusal: Why the model refuses.
        streamed: What an event adds to an item of a response. The last event has the whole item, in the other
            fields.
        tool_calls: Number of each call -> what is added to it.
        token_ids: Tokens; None if the server does not tell them.
        prompt_ids: Tokens of the prompt; likewise.
        log_probs: Log probabilities of the tokens; empty if the server does not tell them.
        token_sources: Source and text of each run of tokens, as our servers tell them; likewise.
        finish_reason: Why the choice ended; "" while it goes on.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    streamed: str = ""
    tool_calls: Mapping[int, ToolCall] = field(default_factory=dict)
    token_ids: Sequence[int] | None = None
    prompt_ids: Sequence[int] | None = None
    log_probs: Sequence[TokenLogProbs] = ()
    token_sources: Sequence[tuple[str, str]] = ()
    finish_reason: str = ""

    @property
    def says_anything(self) -> bool:
        """Whether it has more than the frame of an answer."""
        texts = (self.text, self.reasoning, self.refusal, self.streamed)
        return any(texts) or bool(self.tool_calls)


@dataclass(frozen=True)
class Event:
    """One event of a stream, or a whole answer.

    Attributes:
        deltas: What it adds to each choice.
        num_tokens: Tokens of the answer as the server counts them; None if it does not say.
        num_prompt_tokens: Tokens of the prompt; likewise.
        model: Model that answers; "" if it does not say.
        fingerprint: Fingerprint of the server; likewise.
        finish_reason: Why all of a response ended; "" if it goes on, or its choices say so.
        error: What the server says instead of an answer, as JSON; "" if it answers.
        num_cached: Tokens of the prompt that were not computed; None if it does not say.
    """

    deltas: tuple[Delta, ...] = ()
    num_tokens: int | None = None
    num_prompt_tokens: int | None = None
    model: str = ""
    fingerprint: str = ""
    finish_reason: str = ""
    error: str = ""
    num_cached: int | None = None


class AnswerReader:
    """Reads the body of one response as it arrives.

    Args:
        is_stream: Whether the answer comes as events, rather than in one piece.
        has_items: Whether it is one of ``/v1/responses``.
    """

    def __init__(self, *, is_stream: bool, has_items: bool = False) -> None:
        self._is_stream = is_stream
        self._has_items = has_items
        self._unread = bytearray()
        self._num_read = 0
        self._is_done = False  # the last event was read
        self._has_begun = self._has_other_lines = False  # such as those of a page

    @property
    def is_done(self) -> bool:
        """Whether a stream has come to its last event, behind which a server may keep the connection."""
        return self._is_done

    @property
    def num_unread(self) -> int:
        """Bytes that wait for the rest of their event, or of the answer."""
        return len(self._unread)

    def read(self, data: bytes) -> Iterator[Event]:
        """Yield the events that end in the next bytes.

        Raises:
            UnreadableError: The answer is none of OpenAI's API, or does not end.
        """
        self._num_read += len(data)
        self._unread += data
        if self._is_stream and b"\n" in data:
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                yield from self._events_of(bytes(line).strip())
        most = MOST_STREAM_BYTES if self._is_stream else MOST_ANSWER_BYTES
        if self._num_read > most or (self._is_stream and self.num_unread > MOST_EVENT_BYTES):
            self._unread.clear()
            raise UnreadableError(ENDLESS, f"{self._num_read} bytes and more")

    def end(self) -> Iterator[Event]:
        """Yield the answer in one piece, or check that a stream has come to its end.

        Raises:
            UnreadableError: The answer is none of OpenAI's API, or the stream ended early.
        """
        if not self._is_stream:
            yield self._event(bytes(self._unread))
        elif not self._is_done:
            if not self._has_begun and (self._has_other_lines or self._unread):
                raise UnreadableError(GARBAGE, f"no events, but {_excerpt(self._unread)}")
            raise UnreadableError(ENDED_EARLY)

    def _events_of(self, line: bytes) -> Iterator[Event]:
        """Read one line, which has all data of an event on every server."""
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:"):
            self._has_other_lines |= bool(line) and not line.startswith(_FIELDS)
        elif data == b"[DONE]":
            self._is_done = True
        else:
            yield self._event(data)

    def _event(self, data: bytes) -> Event:
        try:
            document = json.loads(data)
            if not isinstance(document, dict):
                raise TypeError("no JSON object")
            event = _item_event(document) if self._has_items else _choice_event(document)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UnreadableError(GARBAGE, f"{_excerpt(data)}: {type(error).__name__} {error}") from None
        self._is_done |= bool(event.finish_reason)
        self._has_begun |= bool(event.deltas)
        return event


class Choice:
    """One choice of an answer, or one output item of a response, joined from what events add to it.

    Attributes:
        finish_reason: Why it ended; "" if it has not.
        goes_on: Whether something came behind the finish reason.
        token_ids: Its tokens; None if the server does not tell them.
        prompt_ids: Tokens of the prompt; likewise.
        log_probs: Log probabilities of its tokens.
    """

    def __init__(self) -> None:
        self.finish_reason = ""
        self.goes_on = False
        self.token_ids: list[int] | None = None
        self.prompt_ids: list[int] | None = None
        self.log_probs: list[TokenLogProbs] = []
        self._texts: dict[str, list[str]] = {name: [] for name in _TEXTS}
        self._calls: dict[int, list[ToolCall]] = {}

    def add(self, delta: Delta) -> None:
        """Add what an event says of it."""
        self.goes_on |= bool(self.finish_reason) and delta.says_anything
        for name, parts in self._texts.items():
            if text := getattr(delta, name):
                parts.append(text)
        for number, call in delta.tool_calls.items():
            self._calls.setdefault(number, []).append(call)
        if delta.token_ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids += delta.token_ids
        if delta.prompt_ids is not None:
            self.prompt_ids = list(delta.prompt_ids)
        self.log_probs += delta.log_probs
        self.finish_reason = delta.finish_reason or self.finish_reason

    def text(self, name: str = "text") -> str:
        """Return the whole of one of the texts that a ``Delta`` has."""
        return "".join(self._texts[name])

    @property
    def tool_calls(self) -> dict[int, ToolCall]:
        """Calls of tools by their numbers."""
        return {
            number: ToolCall("".join(part.name for part in parts), "".join(part.arguments for part in parts))
            for number, parts in sorted(self._calls.items())
        }


_TEXTS = ("text", "reasoning", "refusal", "streamed")


def join(choices: dict[int, Choice], event: Event) -> None:
    """Add an event to the choices of an answer, by their numbers."""
    for delta in event.deltas:
        choices.setdefault(delta.index, Choice()).add(delta)
    if event.finish_reason:
        for choice in choices.values():
            choice.finish_reason = event.finish_reason


def _choice_event(document: Mapping[str, Any]) -> Event:
    """Read an answer of completions or of chat, or an event of one."""
    if document.get("error"):
        return Event(error=json.dumps(document["error"]))
    usage = document.get("usage") or {}
    return Event(
        tuple(_delta(choice, document.get("prompt_token_ids")) for choice in document["choices"]),
        _count(usage.get("completion_tokens")),
        _count(usage.get("prompt_tokens")),
        str(document.get("model") or ""),
        str(document.get("system_fingerprint") or ""),
        num_cached=_count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
    )


def _delta(choice: Mapping[str, Any], prompt_ids: Sequence[Any] | None) -> Delta:
    part = choice.get("delta") or choice.get("message") or choice
    return Delta(
        _count(choice.get("index")) or 0,
        text=_text(part.get("content") or part.get("text")),
        reasoning=_text(part.get("reasoning_content") or part.get("reasoning")),
        refusal=_text(part.get("refusal")),
        tool_calls={
            call.get("index", number): _call(call.get("function") or {})
            for number, call in enumerate(part.get("tool_calls") or ())
        },
        token_ids=_ids(choice.get("token_ids")),
        prompt_ids=_ids(choice.get("prompt_token_ids") or prompt_ids),
        log_probs=_log_probs(choice.get("logprobs") or {}),
        token_sources=[
            (_text(run["source"]), _text(run["text"])) for run in choice.get("token_sources") or ()
        ],
        finish_reason=_text(choice.get("finish_reason")),
    )


def _item_event(document: Mapping[str, Any]) -> Event:
    """Read a response, or an event of one: each output item is a choice."""
    kind = document.get("type")
    if kind is None:
        return _response_event(document)
    if kind in _LAST_ITEM_EVENTS:
        return _response_event(document["response"])
    if kind in _FAILURES or document.get("error"):
        return Event(error=json.dumps(document))
    deltas: tuple[Delta, ...] = ()
    if kind.endswith(".delta"):
        deltas = (Delta(_count(document["output_index"]) or 0, streamed=_text(document["delta"])),)
    return Event(deltas, model=str((document.get("response") or {}).get("model") or ""))


def _response_event(response: Mapping[str, Any]) -> Event:
    if response.get("error"):
        return Event(error=json.dumps(response["error"]))
    status = response["status"]
    end = status if status == "completed" else ""
    if status == "incomplete":
        end = (response.get("incomplete_details") or {}).get("reason") or status
    return Event(
        tuple(_whole_item(index, item) for index, item in enumerate(response.get("output") or [{}])),
        _count((response.get("usage") or {}).get("output_tokens")),
        model=str(response.get("model") or ""),
        finish_reason=_text(end),
    )


def _whole_item(index: int, item: Mapping[str, Any]) -> Delta:
    if item.get("type") == "function_call":
        return Delta(index, tool_calls={0: _call(item)})
    contents = [*(item.get("content") or ()), *(item.get("summary") or ())]
    text = "".join(_text(each.get("text")) for each in contents)
    refusal = "".join(_text(each.get("refusal")) for each in contents)
    if item.get("type") == "reasoning":
        return Delta(index, reasoning=text, refusal=refusal)
    return Delta(index, text=text, refusal=refusal)


def _call(function: Mapping[str, Any]) -> ToolCall:
    return ToolCall(_text(function.get("name")), _text(function.get("arguments")))


def _log_probs(value: Mapping[str, Any]) -> Sequence[TokenLogProbs]:
    """Read either of the two forms of log probabilities; llama.cpp has that of chat for both paths."""
    if value.get("content") is not None:
        return [
            TokenLogProbs(
                each["token"],
                _number(each["logprob"]),
                {other["token"]: _number(other["logprob"]) for other in each.get("top_logprobs") or ()},
            )
            for each in value["content"]
        ]
    tokens = value.get("tokens") or ()
    alternatives = value.get("top_logprobs") or [None] * len(tokens)
    return [
        TokenLogProbs(token, _number(own), {name: _number(each) for name, each in (top or {}).items()})
        for token, own, top in zip(tokens, value.get("token_logprobs") or (), alternatives, strict=True)
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is no text")
    return value or ""


def _ids(value: Sequence[Any] | None) -> Sequence[int] | None:
    if value is not None and not all(isinstance(each, int) for each in value):
        raise TypeError("a token id is no whole number")
    return value


def _count(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r:.50} is no whole number")
    return value


def _excerpt(data: bytes | bytearray) -> str:
    return data[:_LONGEST_EXCERPT].decode("utf-8", errors="replace")
