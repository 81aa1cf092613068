"""Tests of the command line of ``verify --control``, and of what the control is asked about itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError
from pipelines.validation.__main__ import main
from pipelines.validation.asking import ask_each
from pipelines.validation.audit.arms import Arm, Difference
from pipelines.validation.openai.recording import can_score, join_noise, score
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.answers import Answer, TokenLogProbs
from tests.support.scripted_http import scripted_http

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--against", NOWHERE, "--control", "localhost:1"], "address"),
        (["--control", NOWHERE], "--against"),
        (["--against", NOWHERE, "--control", NOWHERE, "--fields", "[1]"], "JSON object"),
        (["--against", NOWHERE, "--control", NOWHERE, "--key-file", "/none"], "cannot be read"),
        (["--against", NOWHERE, "--control", NOWHERE, "--key", "sk-1"], "unrecognized"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_noise_of_both_kinds_is_joined_prompt_by_prompt() -> None:
    first, second = (Difference(name, "token 1", "a", "b", None) for name in "xy")
    joined = join_noise("both", Arm("x8", (first, None, None), frozenset({2})), [second, second, None])
    assert joined == Arm("both", (first, second, None), frozenset({2}))


def test_a_server_without_echo_cannot_score() -> None:
    able = Abilities(
        **{"model": "m", "engine": "", "completions": True, "chat": False, "token_ids": True},
        **{"log_probs": 20, "named_ids": True, "prompt_ids": True, "echo": True, "seed": True},
        **{"streams": True, "ends_streams": True, "counts_drafts": False},
    )
    assert can_score(able)
    assert not can_score(Abilities(**{**vars(able), "echo": False}))
