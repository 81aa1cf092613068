"""Read answers of ``/v1/completions`` and ``/v1/chat/completions`` strictly.

An answer that contradicts itself is an error, so that it is never taken for equal: one without a finish
reason, with more tokens than were asked for, or with token ids that the server counts differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.errors import TransportError
from pipelines.openai_stream import Choice, Event, TokenLogProbs, ToolCall, join

_ID = re.compile(r"token_id:(\d+)")
_BETWEEN_CHOICES = "\n<choice>\n"


@dataclass(frozen=True)
class Answer:
    """One answer; several choices stand one behind the other.

    Attributes:
        text: Its text.
        finish_reason: Why it ended.
        token_ids: Its tokens; empty if the server does not return them.
        prompt_ids: Tokens of the prompt; likewise.
        log_probs: Log probabilities of its tokens; empty if they were not asked for.
        num_tokens: Number of its tokens as the server counts them; None if it does not.
        num_prompt_tokens: Number of tokens of the prompt; likewise.
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
    num_prompt_tokens: int | None = None
    served_by: tuple[str, str] = ("", "")
    tool_calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""

    @property
    def whole_text(self) -> str:
        """Thoughts, text and calls in one text, which differs if one of them moves to another."""
        thoughts = f"<thoughts>{self.thoughts}</thoughts>" if self.thoughts else ""
        calls = "".join(f"\n<call>{call.name} {call.arguments}</call>" for call in self.tool_calls)
        return f"{thoughts}{self.text}{calls}"


def answer_of(events: Iterable[Event], max_tokens: int, num_choices: int = 1) -> Answer:
    """Join the events of an answer, of which one in one piece has a single one.

    Args:
        events: All of its events.
        max_tokens: Most tokens of each choice.
        num_choices: Number of choices.

    Raises:
        TransportError: They are no answer, change the model, or contradict themselves.
    """
    by_number: dict[int, Choice] = {}
    num_tokens, num_prompt_tokens, served_by = None, None, ("", "")
    for event in events:
        named = event.model, event.fingerprint
        if changed := change_of_server(served_by, named):
            raise _contradiction(changed)
        served_by = named[0] or served_by[0], named[1] or served_by[1]
        num_tokens = num_tokens if event.num_tokens is None else event.num_tokens
        if event.num_prompt_tokens is not None:
            num_prompt_tokens = event.num_prompt_tokens
        join(by_number, event)
    if sorted(by_number) != list(range(num_choices)):
        raise _contradiction(f"{len(by_number)} choices, and {num_choices} were asked for")
    choices = [by_number[number] for number in range(num_choices)]
    _check(choices, num_tokens, max_tokens)
    return Answer(
        text=_BETWEEN_CHOICES.join(choice.text("text") for choice in choices),
        finish_reason=", ".join(dict.fromkeys(choice.finish_reason for choice in choices)),
        token_ids=tuple(token_id for choice in choices for token_id in choice.token_ids or ()),
        prompt_ids=tuple(choices[0].prompt_ids or ()),
        log_probs=tuple(row for choice in choices for row in choice.log_probs),
        num_tokens=num_tokens,
        num_prompt_tokens=num_prompt_tokens,
        served_by=served_by,
        tool_calls=tuple(call for choice in choices for call in choice.tool_calls.values()),
        thoughts=_BETWEEN_CHOICES.join(filter(None, (choice.text("reasoning") for choice in choices))),
    )


def _check(choices: Sequence[Choice], num_tokens: int | None, max_tokens: int) -> None:
    num_allowed = 0
    for choice in choices:
        calls = list(choice.tool_calls)
        if not choice.finish_reason:
            raise _contradiction(f"no finish_reason after {len(choice.text())} characters")
        if choice.goes_on:
            raise _contradiction(f"something after the finish reason {choice.finish_reason!r}")
        if calls != list(range(len(calls))):
            raise _contradiction(f"calls of tools with the numbers {calls}")
        # Servers differ in whether the token that ends an answer is one of its tokens.
        most = max_tokens + (choice.finish_reason != "length")
        if len(choice.token_ids or ()) > most:
            raise _contradiction(f"{len(choice.token_ids or ())} tokens with max_tokens={max_tokens}")
        num_allowed += most
    if num_tokens is not None and num_tokens > num_allowed:
        raise _contradiction(f"{num_tokens} completion_tokens with max_tokens={max_tokens}")
    num_ids = sum(len(choice.token_ids or ()) for choice in choices)
    if num_ids and num_tokens is not None and abs(num_ids - num_tokens) > len(choices):
        raise _contradiction(f"{num_ids} token ids, and {num_tokens} completion_tokens")


def _contradiction(what: str) -> TransportError:
    return TransportError(f"the server's answer contradicts itself: {what}")


def change_of_server(before: tuple[str, str], now: tuple[str, str]) -> str:
    """Describe a change of model or fingerprint between two answers; "" if there is none."""
    changes = [
        f"{old} became {new}" for old, new in zip(before, now, strict=True) if old and new and old != new
    ]
    return ", ".join(changes)


def id_of(token: str) -> int | None:
    """Return the id in the name of a token; None if the name is a text."""
    found = _ID.fullmatch(token)
    return int(found[1]) if found else None
