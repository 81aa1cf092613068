"""Faults of servers that draft, most of them reported by users, for ``fault_proxy`` to plant.

An answer is a list of OpenAI's documents: one, or the events of a stream. A fault changes the request that
the server gets, its answer, or how the answer is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Body = dict[str, Any]
Events = list[Body]
Sent = Literal["", "status 500", "busy first", "busy", "slow", "garbage", "cut", "without an end", "silent"]

FAULT_AT = 3  # token


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What is wrong.
        ask: Returns the request that the server gets instead.
        change: (request, answer, how often it was asked before) -> the answer that the client gets.
        sent: How the answer is sent; "" as it should be.
        is_fault: Whether clients get another answer than they should.
        reported: Where a user reported it; "" nowhere that we know.
    """

    name: str
    ask: Callable[[Body], Body] = lambda request: request
    change: Callable[[Body, Events, int], Events] = lambda request, events, times: events
    sent: Sent = ""
    is_fault: bool = True
    reported: str = ""


def _choices(events: Events) -> Iterator[tuple[Body, Body]]:
    """Yield each choice and its part that has texts and calls."""
    for event in events:
        for choice in event.get("choices") or ():
            yield choice, choice.get("delta") or choice.get("message") or choice


def _with_text(events: Events) -> list[tuple[Body, Body, str]]:
    found = []
    for choice, part in _choices(events):
        key = "content" if "content" in part else "text"
        if part.get(key):
            found.append((choice, part, key))
    return found


def _calls(events: Events) -> list[Body]:
    return [call for _, part in _choices(events) for call in part.get("tool_calls") or ()]


def _of_text(
    change: Callable[[Body, str], str], *, last: bool = True
) -> Callable[[Body, Events, int], Events]:
    """Change the last or first text of an answer."""

    def changed(request: Body, events: Events, times: int) -> Events:
        found = _with_text(events)
        if found:
            _, part, key = found[-1 if last else 0]
            part[key] = change(request, part[key])
        return events

    return changed


def _change_a_token(request: Body, events: Events, times: int) -> Events:
    left = FAULT_AT
    for choice, part in _choices(events):
        ids = choice.get("token_ids") or []
        if left < len(ids):
            ids[left] = (ids[left] + 1000) % 2000
            key = "content" if "content" in part else "text"
            if part.get(key):
                part[key] = part[key][:-1] + "~"
            break
        left -= len(ids)
    return events


def _drop_a_token(request: Body, events: Events, times: int) -> Events:
    for choice, part, key in _with_text(events)[-1:]:
        part[key] = part[key][:-1]
        if choice.get("token_ids"):
            choice["token_ids"] = choice["token_ids"][:-1]
    for event in events:
        if (event.get("usage") or {}).get("completion_tokens"):
            event["usage"]["completion_tokens"] -= 1
    return events


def _say_stop(request: Body, events: Events, times: int) -> Events:
    for choice, _ in _choices(events):
        if choice.get("finish_reason") == "length":
            choice["finish_reason"] = "stop"
    return events


def _forget_the_reason(request: Body, events: Events, times: int) -> Events:
    for choice, _ in _choices(events):
        if request.get("stream"):
            choice["finish_reason"] = None
    return events


def _count(name: str, more: int) -> Callable[[Body, Events, int], Events]:
    def changed(request: Body, events: Events, times: int) -> Events:
        for event in events:
            if event.get("usage"):
                event["usage"][name] += more
        return events

    return changed


def _second_time(request: Body, events: Events, times: int) -> Events:
    for choice, part, key in _with_text(events)[1:] if request.get("stream") else _with_text(events):
        if times and "logprobs" not in request:
            part[key] = part[key][:3] if not request.get("stream") else ""
            if choice.get("token_ids"):
                choice["token_ids"] = choice["token_ids"][:3] if not request.get("stream") else []
    return events


def _streamed(change: Callable[[Events], Events]) -> Callable[[Body, Events, int], Events]:
    return lambda request, events, times: change(events) if request.get("stream") else events


def _without_last_text(events: Events) -> Events:
    for choice, part, key in _with_text(events)[-1:]:
        part[key], choice["token_ids"] = "", []
    return events


def _twice(events: Events) -> Events:
    texts = _with_text(events)
    if len(texts) > 1:
        _, part, key = texts[-1]
        part[key] *= 2
    return events


def _swapped(events: Events) -> Events:
    texts = _with_text(events)
    if len(texts) > 2:
        (_, first, key), (_, second, other) = texts[1:3]
        first[key], second[other] = second[other], first[key]
    return events


def _goes_on(events: Events) -> Events:
    last = next(
        (choice for choice, _ in reversed(list(_choices(events))) if choice.get("finish_reason")), None
    )
    if last is None:
        return events
    event = next(each for each in events if last in each.get("choices", ()))
    kind = {"delta": {"content": "!"}} if "delta" in last else {"text": "!"}
    return [*events, {**event, "usage": None, "choices": [{"index": 0, **kind, "finish_reason": None}]}]


def _without_first_arguments(events: Events) -> Events:
    for call in _calls(events):
        if call.get("index", 0) == 0 and call["function"].get("arguments"):
            call["function"]["arguments"] = ""
    return events


def _without_last_arguments(events: Events) -> Events:
    with_arguments = [call for call in _calls(events) if call["function"].get("arguments")]
    for call in with_arguments[-1:]:
        call["function"]["arguments"] = ""
    return events


def _of_calls(change: Callable[[Body], None]) -> Callable[[Body, Events, int], Events]:
    def changed(request: Body, events: Events, times: int) -> Events:
        for call in _calls(events):
            change(call["function"])
        return events

    return changed


def _other_word(function: Body) -> None:
    for old, new in (
        ("code", "letters"),
        ("letters", "other"),
        ("other", "code"),
        ("author", "reader"),
        ("reader", "author"),
    ):
        if f'"{old}"' in (function.get("arguments") or ""):
            function["arguments"] = function["arguments"].replace(f'"{old}"', f'"{new}"')
            return


def _other_name(function: Body) -> None:
    if function.get("name"):
        function["name"] = {"file_text": "ask_person"}.get(function["name"], "file_text")


def _cut_arguments(function: Body) -> None:
    if function.get("arguments", "").endswith("}"):
        function["arguments"] = function["arguments"][:-1]


def _call_as_text(request: Body, events: Events, times: int) -> Events:
    calls = _calls(events)
    for choice, part in _choices(events):
        if part.pop("tool_calls", None):
            part["content"] = json.dumps([call["function"] for call in calls])
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "stop"
    return events


def _without_second_call(request: Body, events: Events, times: int) -> Events:
    for _, part in _choices(events):
        calls = part.get("tool_calls") or ()
        kept = [call for number, call in enumerate(calls) if not call.get("index", number)]
        if len(kept) < len(calls):
            part["tool_calls"] = kept
    return events


def _rows(events: Events) -> list[Body]:
    return [rows for choice, _ in _choices(events) if (rows := choice.get("logprobs"))]


def _values(rows: Body, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the log probabilities of tokens, in either form of OpenAI's API."""
    if rows.get("content") is not None:
        new = change([each["logprob"] for each in rows["content"]])
        for each, value in zip(rows["content"], new, strict=True):
            each["logprob"] = value
    elif rows.get("token_logprobs"):
        rows["token_logprobs"] = change(rows["token_logprobs"])


def _of_log_probs(
    change: Callable[[list[Any]], list[Any]], *, of_prompts: bool | None = None
) -> Callable[[Body, Events, int], Events]:
    def changed(request: Body, events: Events, times: int) -> Events:
        if of_prompts is None or bool(request.get("echo")) == of_prompts:
            for rows in _rows(events):
                _values(rows, change)
        return events

    return changed


def _copied_alternatives(request: Body, events: Events, times: int) -> Events:
    if not request.get("stream"):
        return events
    before: Any = None
    for rows in _rows(events):
        key = "content" if rows.get("content") is not None else "top_logprobs"
        for place, row in enumerate(rows.get(key) or ()):
            mine = row["top_logprobs"] if key == "content" else row
            if before is not None and key == "content":
                row["top_logprobs"] = before
            elif before is not None:
                rows[key][place] = before
            before = before if before is not None else mine
    return events


def _second_choice_empty(request: Body, events: Events, times: int) -> Events:
    for choice, part, key in _with_text(events):
        if choice.get("index") == 1:
            part[key] = ""
    return events


def _one_system_message(request: Body) -> Body:
    messages = request.get("messages") or []
    if [each["role"] for each in messages[:2]] != ["system", "system"]:
        return request
    return {**request, "messages": [messages[0], *messages[2:]]}


def _without(*names: str) -> Callable[[Body], Body]:
    return lambda request: {name: value for name, value in request.items() if name not in names}


def _longer(more: int) -> Callable[[Body], Body]:
    """Change the number of tokens of plain answers."""
    special = "echo", "tools", "response_format", "stop"

    def changed(request: Body) -> Body:
        return (
            request
            if any(map(request.get, special))
            else {**request, "max_tokens": request["max_tokens"] + more}
        )

    return changed


def _temperature(old: bool, new: float) -> Callable[[Body], Body]:
    return lambda request: (
        {**request, "temperature": new} if bool(request.get("temperature")) == old else request
    )


def _end_of_long_prompts(request: Body) -> Body:
    prompt = request.get("prompt")
    is_long = isinstance(prompt, str) and len(prompt) > 350
    return {**request, "prompt": prompt[-200:]} if is_long else request


def _with_stop_word(request: Body, events: Events, times: int) -> Events:
    if request.get("stop"):
        for _, part, key in _with_text(events)[-1:]:
            part[key] += request["stop"][0]
    return events


def _json_only(request: Body, text: str) -> str:
    return text[:-1] if request.get("response_format") else text


FAULTS = (
    Fault("nothing", is_fault=False),
    Fault("busy now and then (HTTP 429, then an answer)", sent="busy first", is_fault=False),
    Fault("a token is replaced", change=_change_a_token, reported="the rejected token of a draft stays"),
    Fault("the last token is lost", change=_drop_a_token),
    Fault("the text is not that of the tokens", change=_of_text(lambda request, text: text[:-1] + "~")),
    Fault("one token more than max_tokens", ask=_longer(1)),
    Fault("one token fewer than max_tokens", ask=_longer(-1)),
    Fault("another answer the second time", change=_second_time),
    Fault("temperature 0 samples", ask=_temperature(False, 1.0)),
    Fault("temperature 1 does not sample", ask=_temperature(True, 0.0)),
    Fault("finish_reason stop at max_tokens", change=_say_stop),
    Fault("completion_tokens too large by one", change=_count("completion_tokens", 1)),
    Fault("prompt_tokens too small by one", change=_count("prompt_tokens", -1)),
    Fault("streams lack their last text", change=_streamed(_without_last_text)),
    Fault("streams repeat a text", change=_streamed(_twice)),
    Fault("streams swap two texts", change=_streamed(_swapped)),
    Fault("streams have no finish_reason", change=_forget_the_reason),
    Fault("streams go on behind their finish_reason", change=_streamed(_goes_on)),
    Fault("streams have no [DONE]", sent="without an end"),
    Fault("streams break off", sent="cut", reported="vllm#55284"),
    Fault("answers never come", sent="silent"),
    Fault("HTTP status 500", sent="status 500"),
    Fault("garbage instead of JSON", sent="garbage"),
    Fault(
        "the first call loses its arguments in streams",
        change=_streamed(_without_first_arguments),
        reported="vllm#41967",
    ),
    Fault("the last part of a call is lost in streams", change=_streamed(_without_last_arguments)),
    Fault("arguments of a call are cut", change=_of_calls(_cut_arguments)),
    Fault(
        "arguments of a call are others",
        change=_of_calls(_other_word),
        reported="dev.to, Nexus Labs: 1.2 % of calls",
    ),
    Fault("another function is called", change=_of_calls(_other_name)),
    Fault("a call comes as text", change=_call_as_text),
    Fault("the second of two calls is lost", change=_without_second_call),
    Fault("JSON lacks its end", change=_of_text(_json_only)),
    Fault("the schema is ignored", ask=_without("response_format")),
    Fault("stop words are ignored", ask=_without("stop")),
    Fault("stop words stay in the text", change=_with_stop_word),
    Fault(
        "log probabilities are shifted by one token",
        change=_of_log_probs(lambda own: own[-1:] + own[:-1]),
        reported="vllm#34497",
    ),
    Fault(
        "log probabilities are 0",
        change=_of_log_probs(lambda own: [0.0] * len(own), of_prompts=False),
        reported="llama.cpp#27972, vllm#17876",
    ),
    Fault("alternatives are copied in streams", change=_copied_alternatives),
    Fault(
        "log probabilities of prompts are shifted",
        change=_of_log_probs(lambda own: own[-1:] + own[:-1], of_prompts=True),
    ),
    Fault("the second system message is dropped", ask=_one_system_message),
    Fault("the second choice is empty", change=_second_choice_empty),
    Fault("long prompts lose their beginning", ask=_end_of_long_prompts),
)
"""The faults of ``make verify-faults``."""

OF_ROLLOUTS = (Fault("HTTP status 429", sent="busy"), Fault("three times slower", sent="slow"))
"""Faults that only show under load: `verify` waits for a server that is busy or slow."""

BY_NAME = {fault.name: fault for fault in (*FAULTS, *OF_ROLLOUTS)}
