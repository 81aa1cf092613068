"""Tests of the command line of ``verify --control``, and of what the control is asked about itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pipelines.command_line.general_prompts import general_prompts
from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError
from pipelines.openai_stream import TokenLogProbs, ToolCall
from pipelines.validation.__main__ import main
from pipelines.validation.asking import Stages, ask_each
from pipelines.validation.openai import recording
from pipelines.validation.openai.baseline import Baseline, Settings
from pipelines.validation.openai.kinds import KINDS
from pipelines.validation.openai.recording import Recorder, can_score, rounds, score
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question
from pipelines.validation.size import MOST_PROMPTS, MOST_TOKENS, Size
from pipelines.validation.stopping import StoppedError, stop, stopped_early
from tests.support.recorded_baseline import ABILITIES
from tests.support.scripted_http import scripted_http

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--against", NOWHERE, "--control", "localhost:1"], "address"),
        (["--control", NOWHERE], "--against"),
        (["--against", NOWHERE, "--control", NOWHERE, "--fields", "[1]"], "JSON object"),
        (["--against", NOWHERE, "--control", NOWHERE, "--fields", "[" * 100_000], "JSON object"),
        (["--against", NOWHERE, "--control", NOWHERE, "--key-file", "/none"], "cannot be read"),
        (["--against", NOWHERE, "--control", NOWHERE, "--key", "sk-1"], "unrecognized"),
    ],
)
def test_wrong_usage_is_code_2(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"<html>", b"{}"], ids=["none", "garbage", "no models"])
def test_a_server_that_is_none_is_inconclusive(
    content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_http((200, {}, content or b"")) as script:
        url = NOWHERE if content is None else script.url
        code = main(["--against", url, "--control", url, "--num-prompts", "2", "--json"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, report["verdict"]) == (3, "inconclusive")
    assert report["error"]


def test_answers_and_errors_are_in_the_prompts_order_and_defects_are_raised() -> None:
    prompts = [Prompt(str(number), "x") for number in range(9)]

    def ask(prompt: Prompt) -> str:
        if prompt.prompt_id == "4":
            raise InvalidRequestError("refused")
        return prompt.prompt_id

    counts: list[tuple[str, int, int]] = []

    def on_answer(*progress: Any) -> None:
        counts.append(progress)

    found = ask_each("x", ask, prompts, 3, on_answer)
    assert [each for each in found if isinstance(each, str)] == list("01235678")
    assert isinstance(found[4], InvalidRequestError) and counts == [("x", number, 9) for number in range(10)]
    with pytest.raises(ZeroDivisionError):
        ask_each("x", lambda prompt: 1 // 0, prompts, 3, on_answer)


class Scoring:
    """A server that scores two tokens of prompt and three of its own as it is told."""

    def __init__(self, rows: list[TokenLogProbs]) -> None:
        self.rows = rows
        self.sent: dict[str, Any] = {}

    def log_prob_fields(self, path: str) -> dict[str, Any]:
        return {"logprobs": 20}

    def request(self, path: str, fields: dict[str, Any]) -> Answer:
        self.sent = fields
        return Answer("", "length", log_probs=tuple(self.rows))


def row(token: str, **alternatives: float) -> TokenLogProbs:
    return TokenLogProbs(token, alternatives[token], alternatives)


def test_the_control_scores_its_own_answer_and_only_its_own_tokens_count() -> None:
    same, other = row("a", a=-0.1, b=-2.0), row("a", a=-0.7, b=-0.6)
    answer = Answer("abc", "length", token_ids=(7, 8, 9), prompt_ids=(1, 2))
    server: Any = Scoring([other, other, same, other, same, other])
    found = score(server, Prompt("p", "x"), answer)
    assert found is not None and found.place == "token 1" and found.margin is not None
    assert found.margin.log_prob_difference == pytest.approx(0.1)
    assert server.sent["prompt"] == [1, 2, 7, 8, 9] and server.sent["echo"] is True
    server.rows = [other, other, same, same, same, other]  # the last is of the token behind its answer
    assert score(server, Prompt("p", "x"), answer) is None


def test_a_server_without_echo_cannot_score() -> None:
    assert can_score(ABILITIES)
    assert not can_score(replace(ABILITIES, echo=False))


class Slow:
    """A control without log probabilities, whose answers take a time on a clock of its own."""

    abilities = replace(ABILITIES, token_ids=False, log_probs=0, echo=False, chat=False)
    description, failures, num_retries, slowest_s = "slow", Counter[str](), 0, 0.0

    def __init__(self, token_s: float) -> None:
        self.token_s, self.now_s = token_s, 0.0
        self.longest = 0

    def ask(self, question: Question, **how: Any) -> Answer:
        self.now_s += question.max_tokens * self.token_s
        self.longest = max(self.longest, len(question.prompt.text))
        text, word, _ = "some text of no interest".partition(question.fields.get("stop", ["?"])[0])
        return Answer(text, "stop" if word else "length")

    try_out = ask


def recorded(size: Size, token_s: float, monkeypatch: pytest.MonkeyPatch) -> tuple[Slow, Baseline]:
    control: Any = Slow(token_s)
    monkeypatch.setattr(recording.time, "monotonic", lambda: control.now_s)
    until_s = math.inf if size.minutes is None else 60.0 * size.minutes
    prompts = general_prompts().draw(size.num_prompts or MOST_PROMPTS)
    settings = Settings(len(prompts.all), size.max_tokens or MOST_TOKENS)
    recorder = Recorder(control, prompts, size, settings, until_s, 2, Stages(None, until_s))
    for part in recorder.rounds():
        for _ in range(2):  # the candidate, which is as slow
            control.now_s += sum(question.max_tokens for question in part.questions) * token_s
    return control, recorder.baseline({})


@pytest.mark.parametrize("rate", [12, 100, 3_000])
def test_a_pair_is_asked_what_there_is_time_for(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    control, baseline = recorded(Size(5), 1 / rate, monkeypatch)
    assert control.now_s < 303, "the last round is cancelled where it takes longer than it seemed"
    asked = Counter(question.kind for question in baseline.answers.questions)
    plain = asked.pop("plain answers")
    assert 6 <= plain == baseline.settings.num_prompts == baseline.conditions["prompts"]["num_prompts"]
    assert asked.keys() >= {"answers with a stop word", "answers to long prompts", "sampled answers"}
    assert max(asked.values()) - min(asked.values()) <= 1, "no kind waits for another"
    assert baseline.settings.max_tokens == {12: 8, 100: 16, 3_000: 128}[rate]
    assert plain == 320 or rate < 3_000
    assert len(baseline.answers.alone) == len(baseline.answers.loaded) == len(baseline.answers.questions)
    assert control.longest == {12: 500, 100: 500, 3_000: 16_000}[rate], "reading takes a part of the time"


def test_a_time_that_ends_before_the_first_question_is_told() -> None:
    with stopped_early(None), pytest.raises(StoppedError, match="its 5 min are over"):
        stop("its 5 min are over", "give --minutes more")
        next(rounds(3, math.inf))


CALLS = ToolCall("file_text", '{"folder": "code"}'), ToolCall("ask_person", '{"person": "author"}')
JSON = '{"subject": "idea", "moods": ["calm"], "difficulty": 2}'
TOKENS = {"required tool calls": 22, "optional tool calls": 22, "pairs of tool calls": 46, "JSON answers": 28}
UNDER_LOAD = 0.45  # of the time of as many answers alone


class Able(Slow):
    """A control that can do everything, and reads eight tokens in the time in which it writes one."""

    abilities = ABILITIES

    def seconds(self, question: Question) -> float:
        tokens = min(question.max_tokens, TOKENS.get(question.kind, question.max_tokens))
        num_read = (len(question.prompt.text) + len(question.prompt.messages)) / 4
        return (tokens + num_read / 8) * self.token_s

    def ask(self, question: Question, **how: Any) -> Answer:
        self.now_s += self.seconds(question) * (UNDER_LOAD if how.get("stream") else 1)
        ids = {"token_ids": (1,) * 8, "prompt_ids": (1,)}
        if "tool calls" in question.kind:
            calls = CALLS if question.kind.startswith("pairs") else CALLS[:1]
            return Answer("", "tool_calls", tool_calls=calls, **ids)
        if question.kind == "JSON answers":
            return Answer(JSON, "stop", **ids)
        text, word, _ = "some text of no interest".partition(question.fields.get("stop", ["?"])[0])
        return Answer(text, "stop" if word else "length", **ids)

    try_out = ask

    def log_prob_fields(self, path: str) -> dict[str, Any]:
        return {}

    def request(self, path: str, fields: dict[str, Any]) -> Answer:
        self.now_s += 2 * self.token_s
        return Answer("", "length")


def test_five_minutes_of_a_slow_pair_see_every_kind_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    control: Any = Able(0.1)
    control.now_s = 15.0  # what both servers can do was asked before
    monkeypatch.setattr(recording.time, "monotonic", lambda: control.now_s)
    prompts = general_prompts().draw(MOST_PROMPTS)
    recorder = Recorder(control, prompts, Size(5), Settings(), 300.0, 2, Stages(None, 300.0))
    for part in recorder.rounds():
        control.now_s += sum(map(control.seconds, part.questions)) * (1 + UNDER_LOAD)
    asked = Counter(question.kind for question in recorder.baseline({}).answers.questions)
    assert asked.pop("plain answers") >= 20
    assert asked.keys() == set(KINDS) and min(asked.values()) >= 3
    assert control.now_s < 330, "the last round may take longer than it seemed; it is cancelled then"


def test_rounds_grow_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(recording.time, "monotonic", lambda: now_s[0])
    sizes = []
    for units in rounds(100, 60.0):
        sizes.append(units.stop - units.start)
        now_s[0] += 2.0 * sizes[-1]
    assert sizes[:4] == [3, 3, 6, 12] and 40 < now_s[0] <= 60


def test_chosen_prompts_and_tokens_are_asked_whatever_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, baseline = recorded(Size(1, num_prompts=30, max_tokens=50), 0.1, monkeypatch)
    assert (baseline.settings.num_prompts, baseline.settings.max_tokens) == (30, 50)
    control, _ = recorded(Size(None, num_prompts=30, max_tokens=50), 0.1, monkeypatch)
    assert control.longest == 16_000


def test_a_stopped_recording_keeps_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Slow.ask

    def stop_after_some(self: Slow, question: Question, **how: Any) -> Answer:
        if question.prompt.prompt_id == general_prompts().all[20].prompt_id:
            stop("SIGTERM or Ctrl-C", "")
        return asked(self, question, **how)

    monkeypatch.setattr(Slow, "ask", stop_after_some)
    with stopped_early(None):
        _, baseline = recorded(Size(30), 0.001, monkeypatch)
    assert 20 <= baseline.settings.num_prompts < 40
    assert any(isinstance(answer, str) for answer in baseline.answers.loaded), "the rest is missing"
