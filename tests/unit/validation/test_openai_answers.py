"""Tests of how answers of OpenAI-compatible servers are read, and of margins from their log probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pipelines.command_line.prompts import Prompt
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    RequestTimeoutError,
    ServerBusyError,
    TransportError,
)
from pipelines.openai_stream import AnswerReader, TokenLogProbs, ToolCall
from pipelines.validation.openai.comparing import compare_answers, margin_at, without_unlikely_tokens
from pipelines.validation.openai.kinds import PLAIN
from pipelines.validation.openai.server.answers import Answer, answer_of, change_of_server
from pipelines.validation.openai.server.server import Question

CHOICE: dict[str, Any] = {"text": "ab", "finish_reason": "length", "token_ids": [5, 6]}
DOCUMENT: dict[str, Any] = {"model": "m", "choices": [CHOICE], "usage": {"completion_tokens": 2}}


def read_answer(whole: dict[str, Any], max_tokens: int) -> Answer:
    reader = AnswerReader(is_stream=False)
    assert not list(reader.read(json.dumps(whole).encode()))
    return answer_of(reader.end(), max_tokens)


def join_events(events: Iterable[dict[str, Any]], max_tokens: int) -> Answer:
    reader = AnswerReader(is_stream=True)
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return answer_of(reader.read(lines.encode()), max_tokens)


def document(**changes: Any) -> dict[str, Any]:
    return {**DOCUMENT, "choices": [{**CHOICE, **changes}]}


def test_an_answer_of_completions_is_read() -> None:
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"b": -0.5, "c": -1.5}],
    }
    answer = read_answer(document(logprobs=logprobs), 2)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("ab", (5, 6), "length")
    assert math.isnan(answer.log_probs[0].log_prob)
    assert answer.log_probs[1] == TokenLogProbs("b", -0.5, {"b": -0.5, "c": -1.5})


def test_an_answer_of_chat_is_read_and_llama_cpps_log_probabilities_too() -> None:
    token = {"id": 5, "token": "hi", "logprob": -0.1, "top_logprobs": [{"token": "ho", "logprob": -2}]}
    choice = {"message": {"content": "hi"}, "finish_reason": "stop", "logprobs": {"content": [token]}}
    answer = read_answer({"choices": [choice]}, 1)
    assert (answer.text, answer.num_tokens) == ("hi", None)
    assert answer.log_probs == (TokenLogProbs("hi", -0.1, {"ho": -2.0}),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"choices": []},
        {"choices": [CHOICE, {**CHOICE, "index": 1}]},
        {"choices": [{**CHOICE, "index": 1}]},
        document(finish_reason=None),
        document(token_ids=[5]) | {"usage": {"completion_tokens": 9}},
        document(token_ids=[5] * 20) | {"usage": {}},
        document(token_ids=[5, 6, 7, 8]),
        document(token_ids=[5] * 10) | {"usage": {}},
        document() | {"usage": {"completion_tokens": 10}},
    ],
)
def test_an_answer_that_contradicts_itself_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(TransportError, match="contradicts itself"):
        read_answer(wrong, 9)


def test_several_choices_are_one_answer() -> None:
    both = {"choices": [{**CHOICE, "index": 1, "token_ids": [7]}, CHOICE], "usage": {"completion_tokens": 3}}
    reader = AnswerReader(is_stream=False)
    assert not list(reader.read(json.dumps(both).encode()))
    answer = answer_of(reader.end(), 2, num_choices=2)
    assert (answer.token_ids, answer.finish_reason, answer.num_tokens) == ((5, 6, 7), "length", 3)
    assert answer.text.count("ab") == 2


def event(text: str, ids: list[int], reason: str | None = None, model: str = "m") -> dict[str, Any]:
    return {"model": model, "choices": [{"text": text, "token_ids": ids, "finish_reason": reason}]}


def test_events_are_joined() -> None:
    usage = {"model": "m", "choices": [], "usage": {"completion_tokens": 2}, "system_fingerprint": "f"}
    joined = join_events([event("a", [5]), event("b", [6], "stop"), usage], 9)
    assert (joined.text, joined.token_ids, joined.finish_reason) == ("ab", (5, 6), "stop")
    assert (joined.num_tokens, joined.served_by) == (2, ("m", "f"))


def test_calls_and_thoughts_are_read_whole_and_from_a_stream() -> None:
    function = {"name": "file_text", "arguments": '{"folder": "code"}'}
    message = {"content": None, "reasoning_content": "Hm", "tool_calls": [{"id": "1", "function": function}]}
    whole = read_answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]}, 9)
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning": "H"},
        {"reasoning": "m"},
        {"tool_calls": [{"index": 0, "id": "2", "function": {"name": "file_text", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"folder": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"code"}'}}]},
    ]
    events = [{"choices": [{"delta": each}]} for each in deltas]
    last = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    assert join_events([*events, last], 9) == whole
    assert whole.tool_calls == (ToolCall("file_text", '{"folder": "code"}'),)
    assert whole.whole_text != Answer("Hm", "stop").whole_text
    skipped = {"choices": [{"delta": {"tool_calls": [{"index": 1, "function": {}}]}}]}
    with pytest.raises(TransportError):
        join_events([skipped, last], 9)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [event("a", [5])],
        [event("a", [5], "stop"), event("b", [6])],
        [event("a", [5]), event("b", [6], "stop", model="another")],
    ],
)
def test_events_that_are_no_answer_are_an_error(wrong: list[dict[str, Any]]) -> None:
    with pytest.raises(TransportError):
        join_events(wrong, 9)


def test_a_change_of_the_server_is_seen_only_between_what_is_known() -> None:
    assert change_of_server(("m", ""), ("m", "f")) == ""
    assert change_of_server(("m", "f"), ("m", "")) == ""
    assert change_of_server(("m", "f"), ("m", "g")) == "f became g"
    assert change_of_server(("m", "f"), ("n", "f")) == "m became n"


ROW = TokenLogProbs("a", -0.5, {"a": -0.5, "b": -0.75, "c": -4.0})


@pytest.mark.parametrize(
    ("expected", "actual", "margin"),
    [
        ("a", "b", 0.25),
        ("a", "c", 3.5),
        ("a", None, 3.5),  # at least that of the last alternative
        ("a", "z", 3.5),
        ("b", "a", -0.25),  # the control has changed its mind
        ("b", "c", None),  # a third token
        ("z", "a", None),
    ],
)
def test_a_margin_is_that_of_the_two_tokens(expected: str, actual: str | None, margin: float | None) -> None:
    assert margin_at(ROW, expected, actual).log_prob_difference == margin


def test_a_token_outside_close_alternatives_has_no_known_margin() -> None:
    close = TokenLogProbs("a", -0.5, {"a": -0.5, "b": -0.75})
    assert margin_at(close, "a", "z").log_prob_difference is None


ALTERNATIVES = {"token_id:6": -0.5, "token_id:7": -0.75, "token_id:8": -9.0, "token_id:9": -9.5}
ROWS = (TokenLogProbs("token_id:5", -0.1, {}), TokenLogProbs("token_id:6", -0.5, ALTERNATIVES))
OWN = without_unlikely_tokens(Answer("ab", "length", (5, 6), log_probs=ROWS))
TEXT = Answer(
    "a long beginning, then this",
    "length",
    log_probs=(
        TokenLogProbs("a long beginning, then ", -0.1, {}),
        TokenLogProbs("this", -0.5, {"this": -0.5, "that": -0.75, "thus": -9.0}),
    ),
)
QUESTION = Question(Prompt("p", "x"), 9, PLAIN)


STOPPED = replace(OWN, finish_reason="stop")
COUNTED = replace(OWN, prompt_ids=(1, 2), num_tokens=2, num_prompt_tokens=2)


def difference(own: Answer, other: Answer | DraftproofError) -> tuple[str, float | str | None]:
    """Return place and margin of the first difference; "none of tokens" if rounding cannot be its cause."""
    with_ids = bool(own.token_ids)
    [found] = compare_answers([QUESTION], [own], [other], with_ids=with_ids).differences
    if found is None:
        return "", None
    return found.place, found.margin.log_prob_difference if found.margin else "none of tokens"


@pytest.mark.parametrize(
    ("own", "other", "found"),
    [
        (OWN, OWN, ("", None)),
        (OWN, Answer("ac", "length", (5, 7)), ("token 1", 0.25)),
        (OWN, Answer("ac", "length", (5, 9)), ("token 1", 8.5)),  # at least that of the least likely one kept
        (OWN, Answer("a", "length", (5,)), ("token 1", math.inf)),  # a token is missing
        (OWN, Answer("a", "stop", (5,)), ("token 1", None)),
        (OWN, Answer("abc", "length", (5, 6, 7)), ("token 2", math.inf)),  # it has more than were allowed
        (STOPPED, Answer("abc", "stop", (5, 6, 7)), ("token 2", None)),
        (STOPPED, Answer("ab", "stop", (5, 6, 7)), ("", None)),  # servers differ in it
        (OWN, Answer("ac", "length", (5, 6)), ("character 1", "none of tokens")),
        (OWN, Answer("ab", "stop", (5, 6)), ("finish_reason", "none of tokens")),
        (OWN, EngineFailedError("it broke"), ("-", "none of tokens")),
        (OWN, RequestTimeoutError("silent"), ("-", "none of tokens")),
        (COUNTED, replace(COUNTED, prompt_ids=(1,)), ("token 1 of the prompt", "none of tokens")),
        (COUNTED, replace(COUNTED, num_tokens=3), ("usage.completion_tokens", "none of tokens")),
        (COUNTED, replace(COUNTED, num_prompt_tokens=1), ("usage.prompt_tokens", "none of tokens")),
        (replace(TEXT, num_tokens=2), replace(TEXT, num_tokens=3), ("usage.completion_tokens", None)),
        (replace(OWN, log_probs=()), Answer("ac", "length", (5, 7)), ("token 1", None)),
        (replace(OWN, log_probs=ROWS[:1]), Answer("ac", "length", (5, 7)), ("token 1", None)),
        (TEXT, replace(TEXT, text="a long beginning, then that"), ("character 25", 0.25)),
        (TEXT, replace(TEXT, text="a long beginning, that", finish_reason="stop"), ("character 20", None)),
        (TEXT, replace(TEXT, text="a long beginning"), ("character 16", None)),
        (TEXT, replace(TEXT, text="a", finish_reason="stop"), ("finish_reason", "none of tokens")),
        (replace(TEXT, log_probs=()), replace(TEXT, text="b"), ("character 0", None)),
        (replace(TEXT, log_probs=ROWS), replace(TEXT, text="b"), ("character 0", None)),  # named by ids
    ],
)  # fmt: skip
def test_the_first_difference_has_the_margin_of_its_two_tokens(
    own: Answer, other: Answer | DraftproofError, found: tuple[str, float | str | None]
) -> None:
    assert difference(own, other) == found


def with_log_probs(*values: float, others: float = -3.0) -> Answer:
    rows = (TokenLogProbs(str(place), each, {"?": others}) for place, each in enumerate(values))
    return Answer("ab", "length", (5, 6), log_probs=tuple(rows))


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (with_log_probs(-0.2, -1.0), ("", None)),
        (with_log_probs(-0.25, -1.05, others=-9.0), ("", None)),  # as rounding does
        (with_log_probs(-1.0, -0.2), ("log probability of '1' at 1", 1.6)),  # shifted by one token
        (with_log_probs(-0.2, -0.6), ("log probability of '1' at 1", 0.4)),
        (with_log_probs(-0.2, math.nan), ("log probability of '1' at 1", math.inf)),
        (with_log_probs(-0.2), ("log probabilities", "none of tokens")),
    ],
)
def test_log_probabilities_of_equal_tokens_are_compared(
    other: Answer, found: tuple[str, float | str | None]
) -> None:
    place, margin = difference(with_log_probs(-0.2, -1.0), other)
    assert place == found[0]
    assert margin == (pytest.approx(found[1]) if isinstance(found[1], float) else found[1])


def test_gaps_at_few_tokens_of_many_do_not_add_up() -> None:
    """A long prompt has some, without a fault."""
    own, few, many = ([-0.2] * 9 for _ in range(3))
    few[:2] = many[:2] = -0.7, -0.9
    many[2] = -0.6
    for other, margin in ((few, 0.7), (many, 1.6)):
        assert difference(with_log_probs(*own), with_log_probs(*other)) == (
            "log probability of '1' at 1",
            pytest.approx(margin),
        )


def test_alternatives_that_are_likely_in_one_answer_alone_are_found() -> None:
    """As where a stream repeats those of its first token."""
    first, second = {"a": -0.1, "b": -4.0, "c": -5.0}, {"d": -0.2, "e": -3.0, "f": -7.0}
    own = Answer(
        "ad", "length", (5, 6), (), (TokenLogProbs("a", -0.1, first), TokenLogProbs("d", -0.2, second))
    )
    copied = replace(own, log_probs=(own.log_probs[0], TokenLogProbs("d", -0.2, first)))
    place, margin = difference(own, copied)
    assert (place, margin) == ("log probability of 'a' at 1", pytest.approx(6.9))


def test_what_is_kept_of_alternatives_decides_every_margin() -> None:
    assert list(OWN.log_probs[1].alternatives) == ["token_id:6", "token_id:7", "token_id:8"]


def test_an_answer_that_is_missing_on_either_side_is_not_compared() -> None:
    busy = ServerBusyError("the queue is full")
    for own, other in ((busy, OWN), (OWN, busy), (EngineFailedError("it broke"), OWN)):
        found = compare_answers([QUESTION], [own], [other], with_ids=True)
        assert (found.differences, found.missing) == ((None,), {0})
