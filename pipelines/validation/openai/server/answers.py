"""Read answers of ``/v1/completions`` and ``/v1/chat/completions`` strictly.

An answer that contradicts itself is an error, so that it is never taken for equal: one without a finish
reason, with more tokens than were asked for, or with token ids that the server counts differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.errors import TransportError

_ID = re.compile(r"token_id:(\d+)")


@dataclass(frozen=True)
class TokenLogProbs:
    """Log probabilities at one output token; names of tokens are their texts, or ``token_id:<id>``.

    Attributes:
        token: Name of the token.
        log_prob: Its natural log probability.
        alternatives: Names and log probabilities of the likeliest tokens there.
    """

    token: str
    log_prob: float
    alternatives: Mapping[str, float]


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool; its id is random and left out.

    Attributes:
        name: Name of the function.
        arguments: Its arguments as the model wrote them.
    """

    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        text: Its text.
        finish_reason: Why it ended.
        token_ids: Its tokens; empty if the server does not return them.
        prompt_ids: Tokens of the prompt; likewise.
        log_probs: Log probabilities of its tokens; empty if they were not asked for.
        num_tokens: Number of its tokens as the server counts them; None if it does not.
        served_by: Model and fingerprint of the server, as the answer says; "" for what it does not say.
        tool_calls: Calls of tools.
        thoughts: What the model thought before its answer, if the server separates it.
    """

    text: str
    finish_reason: str
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    log_probs: tuple[TokenLogProbs, ...] = ()
    num_tokens: int | None = None
    served_by: tuple[str, str] = ("", "")
    tool_calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""

    @property
    def whole_text(self) -> str:
        """Thoughts, text and calls in one text, which differs if one of them moves to another."""
        thoughts = f"<thoughts>{self.thoughts}</thoughts>" if self.thoughts else ""
        calls = "".join(f"\n<call>{call.name} {call.arguments}</call>" for call in self.tool_calls)
        return f"{thoughts}{self.text}{calls}"


def read_answer(document: Mapping[str, Any], max_tokens: int) -> Answer:
    """Read a whole answer.

    Args:
        document: What the server sent.
        max_tokens: Most tokens of the answer.

    Raises:
        TransportError: It is no answer, or contradicts itself.
    """
    try:
        (choice,) = document["choices"]
        message = choice.get("message", choice)
        text = message.get("content" if "message" in choice else "text")
        usage = document.get("usage") or {}
        answer = Answer(
            text=text_of(text or ""),
            finish_reason=text_of(choice.get("finish_reason") or ""),
            token_ids=ids_of(choice.get("token_ids")),
            prompt_ids=ids_of(choice.get("prompt_token_ids") or document.get("prompt_token_ids")),
            log_probs=_log_probs(choice.get("logprobs")),
            num_tokens=usage.get("completion_tokens"),
            served_by=served_by(document),
            tool_calls=tuple(_call(each["function"]) for each in message.get("tool_calls") or ()),
            thoughts=thoughts_of(message),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise no_answer(f"{type(error).__name__} {error} in {str(document)[:200]}") from None
    return checked(answer, max_tokens)


def change_of_server(before: tuple[str, str], now: tuple[str, str]) -> str:
    """Describe a change of model or fingerprint between two answers; "" if there is none."""
    changes = [
        f"{old} became {new}" for old, new in zip(before, now, strict=True) if old and new and old != new
    ]
    return ", ".join(changes)


def served_by(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return model and fingerprint as an answer or an event says them."""
    return str(document.get("model") or ""), str(document.get("system_fingerprint") or "")


def thoughts_of(message: Mapping[str, Any]) -> str:
    """Return the thoughts of a message or of a part of it; engines differ in the name."""
    return text_of(message.get("reasoning_content") or message.get("reasoning") or "")


def checked(answer: Answer, max_tokens: int) -> Answer:
    """Return an answer.

    Raises:
        TransportError: It contradicts itself.
    """
    if not answer.finish_reason:
        raise no_answer(f"no finish_reason after {len(answer.text)} characters")
    num_ids = len(answer.token_ids)
    if max(num_ids, answer.num_tokens or 0) > max_tokens + 1:
        raise no_answer(f"{max(num_ids, answer.num_tokens or 0)} tokens with max_tokens={max_tokens}")
    # Servers differ in whether the token that ends an answer is one of its tokens.
    if num_ids and answer.num_tokens is not None and abs(num_ids - answer.num_tokens) > 1:
        raise no_answer(f"{num_ids} token ids, and {answer.num_tokens} completion_tokens")
    return answer


def no_answer(values: str) -> TransportError:
    """Return the error for what is no answer."""
    return TransportError(
        "the server's answer is none of OpenAI's API, or contradicts itself",
        values=values,
        limit="one choice with text and finish_reason, no more tokens than asked for, all of them counted",
    )


def text_of(value: object) -> str:
    """Return a text.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def ids_of(value: Sequence[Any] | None) -> tuple[int, ...]:
    """Return token ids.

    Raises:
        TypeError: One is no whole number.
    """
    ids = tuple(value or ())
    if not all(isinstance(each, int) for each in ids):
        raise TypeError("a token id is no whole number")
    return ids


def _call(function: Mapping[str, Any]) -> ToolCall:
    return ToolCall(text_of(function["name"]), text_of(function.get("arguments") or ""))


def _log_probs(value: Mapping[str, Any] | None) -> tuple[TokenLogProbs, ...]:
    """Read either of the two forms of log probabilities; llama.cpp has that of chat for both paths."""
    if not value:
        return ()
    if value.get("content") is not None:
        return tuple(
            TokenLogProbs(
                token["token"],
                float(token["logprob"]),
                {each["token"]: float(each["logprob"]) for each in token.get("top_logprobs") or ()},
            )
            for token in value["content"]
        )
    tokens = value["tokens"]
    rows = zip(
        tokens, value["token_logprobs"], value.get("top_logprobs") or [None] * len(tokens), strict=True
    )
    return tuple(
        # The first token of an echoed prompt has none.
        TokenLogProbs(
            token, math.nan if own is None else float(own), {k: float(v) for k, v in (top or {}).items()}
        )
        for token, own, top in rows
    )


def id_of(token: str) -> int | None:
    """Return the id in the name of a token; None if the name is a text."""
    found = _ID.fullmatch(token)
    return int(found[1]) if found else None


def join_events(events: Sequence[Mapping[str, Any]], max_tokens: int) -> Answer:
    """Join the events of a stream.

    Args:
        events: All events before ``[DONE]``.
        max_tokens: Most tokens of the answer.

    Raises:
        TransportError: They are no answer, change the model, or contradict themselves.
    """
    joined = Answer("", "")
    try:
        for event in events:
            joined = _with_server(joined, event)
            for choice in event["choices"]:
                joined = _with_choice(joined, choice)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise no_answer(f"{type(error).__name__} {error}") from None
    return checked(joined, max_tokens)


def _with_server(joined: Answer, event: Mapping[str, Any]) -> Answer:
    """Add what an event says about the whole answer."""
    if changed := change_of_server(joined.served_by, served_by(event)):
        raise ValueError(changed)
    model, fingerprint = (new or old for new, old in zip(served_by(event), joined.served_by, strict=True))
    usage = event.get("usage")
    return replace(
        joined,
        served_by=(model, fingerprint),
        num_tokens=joined.num_tokens if usage is None else usage["completion_tokens"],
    )


def _with_choice(joined: Answer, choice: Mapping[str, Any]) -> Answer:
    delta = choice.get("delta", choice)
    more = text_of(delta.get("content" if "delta" in choice else "text") or "")
    thoughts, calls = thoughts_of(delta), delta.get("tool_calls") or ()
    if joined.finish_reason and (more or thoughts or calls):
        raise ValueError("text after the finish reason")
    return replace(
        joined,
        text=joined.text + more,
        thoughts=joined.thoughts + thoughts,
        tool_calls=_with_calls(joined.tool_calls, calls),
        finish_reason=text_of(choice.get("finish_reason") or joined.finish_reason),
        token_ids=joined.token_ids + ids_of(choice.get("token_ids")),
        prompt_ids=joined.prompt_ids or ids_of(choice.get("prompt_token_ids")),
    )


def _with_calls(calls: tuple[ToolCall, ...], deltas: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """Add parts of calls; each names its call by a number, and a new call has the next number."""
    joined = list(calls)
    for delta in deltas:
        place, function = delta["index"], delta.get("function") or {}
        if place == len(joined):
            joined.append(ToolCall("", ""))
        joined[place] = ToolCall(
            joined[place].name + text_of(function.get("name") or ""),
            joined[place].arguments + text_of(function.get("arguments") or ""),
        )
    return tuple(joined)
