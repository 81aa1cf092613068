"""Join the events of a stream into one answer, as strictly as whole answers are read (``answers``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipelines.validation.openai.server.answers import (
    Answer,
    ToolCall,
    change_of_server,
    checked,
    ids_of,
    no_answer,
    served_by,
    text_of,
    thoughts_of,
)


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
