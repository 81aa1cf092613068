"""Tests of the kinds of questions that a comparison asks, and of the rules that answers must keep."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pipelines.command_line.prompts import Prompt
from pipelines.errors import ServerBusyError
from pipelines.openai_stream import ToolCall
from pipelines.validation.openai.comparing import as_streamed, compare_answers
from pipelines.validation.openai.kinds import KINDS, Material, checked
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question
from tests.support.recorded_baseline import ABILITIES

PROMPTS = tuple(Prompt(f"p{number}", f"text {number} " * 20) for number in range(10))
ANSWERS = tuple(Answer(f"One fine answer, number {number}.", "length") for number in range(10))
MATERIAL = Material(PROMPTS, dict(enumerate(ANSWERS)), 16, ABILITIES)
DESCRIPTION = {
    "subject": "idea",
    "moods": ["calm"],
    "difficulty": 2,
}
JSON = json.dumps(DESCRIPTION)


def question(kind: str) -> Question:
    found = KINDS[kind].ways[0](MATERIAL, 0)
    assert found is not None
    return found


def calling(name: str, arguments: str) -> Answer:
    return Answer("", "tool_calls", tool_calls=(ToolCall(name, arguments),))


def test_every_kind_makes_a_question_with_a_name_of_its_own() -> None:
    asked = [question(kind) for kind in KINDS]
    assert [each.kind for each in asked] == list(KINDS)
    assert len({each.prompt.prompt_id for each in asked}) == len(KINDS)
    [word] = question("answers with a stop word").fields["stop"]
    assert word in ANSWERS[0].text and not ANSWERS[0].text.startswith(word)
    assert len(question("answers to long prompts").prompt.text) > 5_000
    assert question("sampled answers").greedy == ANSWERS[0].text
    systems = json.loads(question("answers to two system messages").prompt.messages)
    assert [each["role"] for each in systems] == ["system", "system", "user"]
    both = {each.kind for each in asked if each.log_probs == "both"}
    assert both == {"log probabilities", "log probabilities of prompts"}


@pytest.mark.parametrize(
    ("feature", "answer"),
    [
        ("JSON answers", Answer(JSON, "stop")),
        ("JSON answers", Answer(JSON[:20], "length")),
        ("required tool calls", calling("ask_person", '{"person": "author"}')),
        ("required tool calls", Answer("", "length", thoughts="Well")),
        ("optional tool calls", Answer("no call", "stop")),
        ("answers with a stop word", Answer("One fine", "stop")),
    ],
)
def test_a_right_answer_is_taken(feature: str, answer: Answer) -> None:
    assert checked(question(feature), answer) is answer


@pytest.mark.parametrize(
    ("feature", "answer", "reason"),
    [
        ("JSON answers", Answer("Sure!", "stop"), "schema"),
        ("JSON answers", Answer("Sure! {", "length"), "not a JSON object"),
        ("JSON answers", Answer(JSON.replace("2", "9"), "stop"), "schema"),
        ("JSON answers", Answer(JSON.replace("calm", "mad"), "stop"), "schema"),
        ("JSON answers", Answer("[" * 100_000, "stop"), "schema"),
        ("required tool calls", Answer("Sure!", "stop"), "no call"),
        ("required tool calls", Answer("Sure!", "length"), "no call"),
        ("required tool calls", calling("delete", "{}"), "not offered"),
        ("required tool calls", calling("file_text", "{}"), "schema"),
        ("required tool calls", calling("file_text", "{"), "schema"),
        ("pairs of tool calls", calling("file_text", '{"folder": "code"}'), "both were asked for"),
        ("answers with a stop word", ANSWERS[0], "stop word"),
    ],
)
def test_an_answer_that_breaks_its_feature_is_an_error(feature: str, answer: Answer, reason: str) -> None:
    assert reason in str(checked(question(feature), answer))


@pytest.mark.parametrize("wrong", [{"difficulty": 9}, {"moods": []}, {"more": 1}, {"subject": 1}])
def test_the_schema_that_is_sent_is_the_one_that_is_checked(wrong: dict[str, Any]) -> None:
    asked = question("JSON answers")
    schema = asked.fields["response_format"]["json_schema"]["schema"]
    jsonschema.validate(DESCRIPTION, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(DESCRIPTION | wrong, schema)
    assert "schema" in str(checked(asked, Answer(json.dumps(DESCRIPTION | wrong), "stop")))


def test_tokens_behind_a_stop_word_are_no_difference_and_its_text_is() -> None:
    asked = [question("answers with a stop word")]
    own = [Answer("One f", "stop", (1, 2, 3))]

    def differs(other: Answer) -> bool:
        [found] = compare_answers(asked, own, [other], with_ids=True).differences
        assert found is None or found.margin is None, "no rounding explains it"
        return found is not None

    assert not differs(Answer("One f", "stop", (1, 2, 3, 4, 5)))
    assert not differs(Answer("One f", "stop", (1, 2)))
    assert differs(Answer("One ", "stop", (1, 2, 3)))
    assert differs(Answer("One f", "length", (1, 2, 3)))


def test_a_stream_is_compared_with_the_controls_stream_if_that_has_its_tokens() -> None:
    whole, streamed = Answer("a", "stop", (1, 2)), Answer("a ", "stop", (1, 2))
    assert as_streamed(whole, streamed) == streamed
    assert as_streamed(whole, Answer("b", "stop", (1, 3))) is whole
    assert as_streamed(whole, ServerBusyError("busy")) is whole
