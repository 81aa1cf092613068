"""Tests of the kinds of questions that a comparison asks, and of the rules that answers must keep."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from pipelines.command_line.prompts import Prompt
from pipelines.errors import EngineFailedError, ServerBusyError, VerificationError
from pipelines.openai_stream import ToolCall
from pipelines.validation.__main__ import main
from pipelines.validation.openai.comparing import as_streamed, compare_answers
from pipelines.validation.openai.kinds import KINDS, Material, checked
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.openai.server.server import OpenAIServer, Question
from pipelines.validation.openai.verify import compares_streams
from tests.support.recorded_baseline import ABILITIES
from tests.support.scripted_http import scripted_http
from tests.support.stand_in_openai import Faults, stand_in_openai

PROMPTS = tuple(Prompt(f"p{number}", f"text {number} " * 20) for number in range(10))
ANSWERS = tuple(Answer(f"One fine answer, number {number}.", "length") for number in range(10))
MATERIAL = Material(PROMPTS, dict(enumerate(ANSWERS)), 16, ABILITIES)
DESCRIPTION = {"subject": "idea", "moods": ["calm"], "difficulty": 2}
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


SIZE = ("--num-prompts", "6", "--max-tokens", "8", "--num-at-once", "2")


def opened(url: str, model: str = "") -> OpenAIServer:
    return OpenAIServer(Endpoint.of(url, model, "", {}), 10.0)


def compared(control: Faults, candidate: Faults, folder: Path, capsys: Any) -> tuple[int, dict[str, Any]]:
    with stand_in_openai(control) as first, stand_in_openai(candidate) as second:
        servers = ("--against", second.url, "--control", first.url)
        code = main([*servers, *SIZE, "--html", str(folder / "page.html"), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("engine", ["vllm:", "llamacpp:", ""])
def test_draft_tokens_are_counted_under_the_name_of_any_engine(engine: str) -> None:
    counters = (
        f'{engine}spec_decode_num_draft_tokens_total{{slot="0"}} 40',
        f'{engine}spec_decode_num_draft_tokens_total{{slot="1"}} 2',
        f"{engine}spec_decode_num_accepted_tokens_total 7",
    )
    with stand_in_openai(metrics="\n".join(counters)) as server:
        found = opened(server.url)
        assert found.abilities.counts_drafts
        assert found.draft_tokens() == 42


def test_a_named_model_needs_no_list() -> None:
    """Such as that of ``transformers serve``, which fails where the hub's cache does not exist."""
    with stand_in_openai(lists_models=False) as server:
        assert opened(server.url, "stand-in").abilities.completions
        with pytest.raises(EngineFailedError):
            opened(server.url)


def test_a_probe_that_fails_is_tried_again_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answered one request in ten with HTTP 500 once ended the whole comparison."""
    model = (200, {}, b'{"data": [{"id": "m"}]}')
    broken = (500, {}, b'{"error": {"message": "CUDA error"}}')
    text = b'{"model": "m", "choices": [{"text": "a", "message": {"content": "a"}, "finish_reason": "stop"}]}'
    with scripted_http(model, broken, (200, {}, text)) as script:
        server = opened(script.url)
    assert server.abilities.chat
    (failed,) = (what for what in server.failures if "500" in what)
    assert server.failures[failed] == 1


@pytest.mark.parametrize("value", ["NaN", "+Inf", "many"])
def test_a_counter_that_is_no_number_tells_nothing(value: str) -> None:
    with stand_in_openai(metrics=f"spec_decode_num_draft_tokens_total {value}") as server:
        assert opened(server.url).draft_tokens() is None


@pytest.mark.parametrize("listed", [b"[" * 100_000, b"{", b"[]", b'{"data": [1]}', b'{"data": null}'])
def test_a_list_of_models_that_is_none_is_told(listed: bytes) -> None:
    with scripted_http((200, {}, listed)) as script, pytest.raises(VerificationError, match="lists none"):
        opened(script.url)


def test_streams_that_neither_server_ends_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report = compared(Faults(ends=1.0), Faults(ends=1.0), tmp_path, capsys)
    assert report["verdict"] != "fail"
    assert not [name for name in report["sections"][1]["figures"]["audits"] if "streamed" in name]
    notes = report["sections"][3]["figures"]["not_checked"]
    assert "streams: both servers end them without data: [DONE], so a cut one would look whole" in notes


def test_streams_that_only_the_candidate_does_not_end_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = compared(Faults(), Faults(ends=1.0), tmp_path, capsys)
    assert (code, report["verdict"]) == (1, "fail")
    found = report["sections"][0]["figures"]["differences"]
    assert found and all("streamed" in each["asked"] for each in found)


def test_streams_without_an_end_are_compared_with_a_control_that_has_no_streams() -> None:
    def able(*, streams: bool, ends_streams: bool) -> Any:
        return SimpleNamespace(streams=streams, ends_streams=ends_streams)

    without, open_ends = able(streams=False, ends_streams=False), able(streams=True, ends_streams=False)
    whole = able(streams=True, ends_streams=True)
    assert compares_streams(without, open_ends)
    assert compares_streams(whole, open_ends)
    assert compares_streams(open_ends, whole)
    assert not compares_streams(open_ends, open_ends)
    assert not compares_streams(whole, without)


def test_a_stream_that_breaks_does_not_count_as_one_without_an_end() -> None:
    with stand_in_openai(Faults(cuts=1.0)) as server:
        abilities = opened(server.url).abilities
    assert (abilities.streams, abilities.ends_streams) == (True, True)
