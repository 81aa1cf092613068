"""Tests of the features of requests that a comparison asks for, and of the rules that answers must keep."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.openai_stream import ToolCall
from pipelines.validation.openai.comparing import as_streamed, compare_answers
from pipelines.validation.openai.feature_choice import FEATURES, checked, questions_for, refused_features
from pipelines.validation.openai.features import Material
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question

PROMPTS = tuple(Prompt(f"p{number}", f"text {number} " * 20) for number in range(10))
ANSWERS = tuple(Answer(f"One fine answer, number {number}.", "length") for number in range(10))
MATERIAL = Material(PROMPTS, ANSWERS, 16, chat=True, completions=True)
DESCRIPTION = {
    "subject": "idea",
    "setting": {"place": "both", "is_historic": True},
    "moods": ["calm"],
    "difficulty": 2,
}
JSON = json.dumps(DESCRIPTION)


class Follower:
    """A server that follows every request except those about some features."""

    def __init__(self, error: Exception | None = None, *unable: str) -> None:
        self.error = error
        self.unable = unable

    def try_out(self, question: Question) -> Answer:
        if self.error is not None and question.feature in self.unable:
            raise self.error
        if question.feature == "required tool calls":
            return Answer("", "tool_calls", tool_calls=(ToolCall("file_text", '{"folder": "code"}'),))
        return Answer(JSON, "stop")


def question(feature: str) -> Question:
    found = FEATURES[feature].ways[0](MATERIAL, 0)
    assert found is not None
    return found


def calling(name: str, arguments: str) -> Answer:
    return Answer("", "tool_calls", tool_calls=(ToolCall(name, arguments),))


def test_each_prompt_asks_one_feature_in_turn() -> None:
    server: Any = Follower()
    questions, notes = questions_for(server, MATERIAL)
    assert notes == []
    assert [each.feature for each in questions] == [*FEATURES, *FEATURES]
    assert len({each.prompt.prompt_id for each in questions}) == 10
    [word] = questions[0].fields["stop"]
    assert word in ANSWERS[0].text and not ANSWERS[0].text.startswith(word)
    assert len(questions[4].prompt.text) > 5_000


def test_a_feature_that_the_control_lacks_is_left_out_with_the_reason() -> None:
    server: Any = Follower(InvalidRequestError("no grammar here"), "structured output", "long prompts")
    questions, notes = questions_for(server, MATERIAL)
    assert {each.feature for each in questions} == set(FEATURES) - {"structured output", "long prompts"}
    assert len(questions) == len(PROMPTS)
    assert [note.partition(":")[0] for note in notes] == ["structured output", "long prompts"]
    assert all("no grammar here" in note for note in notes)


def test_tools_are_left_out_without_conversations() -> None:
    server: Any = Follower()
    texts = Material(PROMPTS, ANSWERS, 16, chat=False, completions=True)
    questions, notes = questions_for(server, texts)
    assert {each.feature for each in questions} == {"stop words", "structured output", "long prompts"}
    assert len(notes) == 2
    assert all(not each.prompt.messages for each in questions)


def test_only_a_refusal_excuses_a_candidate() -> None:
    follower: Any = Follower()
    asked, _ = questions_for(follower, MATERIAL)
    refusing: Any = Follower(InvalidRequestError("no tools"), "offered tools")
    assert refused_features(refusing, asked) == {"offered tools": "no tools"}
    busy: Any = Follower(ServerBusyError("busy"), "offered tools")
    assert refused_features(busy, asked) == {}


@pytest.mark.parametrize(
    ("feature", "answer"),
    [
        ("structured output", Answer(JSON, "stop")),
        ("structured output", Answer(JSON[:20], "length")),
        ("required tool calls", calling("ask_person", '{"person": "author"}')),
        ("required tool calls", Answer("", "length", thoughts="Well")),
        ("offered tools", Answer("no call", "stop")),
        ("stop words", Answer("One fine", "stop")),
    ],
)
def test_a_right_answer_is_taken(feature: str, answer: Answer) -> None:
    assert checked(question(feature), answer) is answer


@pytest.mark.parametrize(
    ("feature", "answer", "reason"),
    [
        ("structured output", Answer("Sure!", "stop"), "schema"),
        ("structured output", Answer("Sure! {", "length"), "not a JSON object"),
        ("structured output", Answer(JSON.replace("2", "9"), "stop"), "schema"),
        ("structured output", Answer(JSON.replace("true", '"yes"'), "stop"), "schema"),
        ("structured output", Answer("[" * 100_000, "stop"), "schema"),
        ("required tool calls", Answer("Sure!", "stop"), "no call"),
        ("required tool calls", Answer("Sure!", "length"), "no call"),
        ("required tool calls", calling("delete", "{}"), "not offered"),
        ("required tool calls", calling("file_text", "{}"), "schema"),
        ("required tool calls", calling("file_text", "{"), "schema"),
        ("stop words", ANSWERS[0], "stop word"),
    ],
)
def test_an_answer_that_breaks_its_feature_is_an_error(feature: str, answer: Answer, reason: str) -> None:
    assert reason in str(checked(question(feature), answer))


@pytest.mark.parametrize("wrong", [{"difficulty": 9}, {"moods": []}, {"more": 1}, {"setting": {}}])
def test_the_schema_that_is_sent_is_the_one_that_is_checked(wrong: dict[str, Any]) -> None:
    asked = question("structured output")
    schema = asked.fields["response_format"]["json_schema"]["schema"]
    jsonschema.validate(DESCRIPTION, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(DESCRIPTION | wrong, schema)
    assert "schema" in str(checked(asked, Answer(json.dumps(DESCRIPTION | wrong), "stop")))


def test_tokens_behind_a_stop_word_are_no_difference_and_its_text_is() -> None:
    asked = [question("stop words")]
    own = [Answer("One f", "stop", (1, 2, 3))]

    def differs(other: Answer) -> bool:
        [found] = compare_answers("x", asked, own, [other], with_ids=True).differences
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
