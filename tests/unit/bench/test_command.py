"""Tests of the bench's command line and prompts."""

from __future__ import annotations

import itertools
import json
import shlex
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench import __main__ as command
from pipelines.bench.options import FULL, QUICK, make_parser, size_of
from pipelines.bench.prompt_sets import (
    PromptSet,
    adversarial_requests,
    adversarial_set,
    draw_sets,
    make_prompt_sets,
    names_of_sets,
    repetitive_texts,
)
from pipelines.bench.workers import Ask, Workers
from pipelines.client import CompletionRequest, Generation
from pipelines.command_line.general_prompts import general_prompts
from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.text.vocabulary import Vocabulary
from tests.support.demo_prompts import DEMO_PROMPTS
from tests.unit.bench.answers import answer
from tests.unit.client.scripted_client import ScriptedClient

BYTES = tuple(bytes([value]) for value in range(256))


def demo_sets() -> dict[str, PromptSet]:
    prompts = read_prompts(DEMO_PROMPTS)
    names = names_of_sets(prompts, None, is_quick=False)
    assert names == ("code", "mixed", "adversarial", "repetitive")
    return make_prompt_sets(draw_sets(prompts, names, 32, 32), names, 32, 0.8)


def test_prompt_sets_are_the_same_each_time_and_large_enough() -> None:
    sets, again = demo_sets(), demo_sets()
    assert set(sets) == {"code", "mixed", "repetitive"}
    sets["adversarial"] = adversarial_set(32, Vocabulary(BYTES))
    for name, prompt_set in sets.items():
        assert len({request.prompt for request in prompt_set.requests}) == 32, name
        if name != "adversarial":
            assert prompt_set.requests == again[name].requests
            assert {request.temperature for request in prompt_set.requests} == {0.8}
            assert len({request.seed for request in prompt_set.requests}) == 32
    assert {request.temperature for request in sets["adversarial"].requests} == {0.0}
    assert sets["adversarial"].requests == adversarial_set(32, Vocabulary(BYTES)).requests


def test_a_file_of_a_generated_sets_name_is_not_read_and_this_is_said() -> None:
    drawn = draw_sets(read_prompts(DEMO_PROMPTS), ("code", "adversarial"), 8, 8)
    assert {name: len(of_set) for name, of_set in drawn.sets.items()} == {"code": 8}
    assert "the benchmark generates these sets itself: adversarial, repetitive" in drawn.notes[-1]


def test_sets_are_those_of_the_pairs_own_prompts() -> None:
    prompts = Prompts("mine", {"mail": tuple(Prompt(str(number), f"text {number}") for number in range(9))})
    assert names_of_sets(prompts, None, is_quick=False) == ("mail", "adversarial", "repetitive")
    assert names_of_sets(prompts, None, is_quick=True) == ("mail", "adversarial")
    assert names_of_sets(prompts, ["repetitive"], is_quick=True) == ("repetitive",)
    with pytest.raises(InvalidRequestError, match=r"no prompt set code: mine has mail, and"):
        names_of_sets(prompts, ["mail", "code"], is_quick=False)
    assert len(draw_sets(prompts, ("mail",), 4, 16).sets["mail"]) == 9
    with pytest.raises(InvalidRequestError, match=r"too few prompts, 10 are needed .*: mine: mail: 9"):
        draw_sets(prompts, ("mail",), 10, 16)
    generated = Prompts("mine", {"adversarial": (Prompt("a", "text"),)})
    with pytest.raises(InvalidRequestError, match="no prompt set that is not generated"):
        names_of_sets(generated, ["adversarial"], is_quick=False)
    (mail,) = make_prompt_sets(prompts.draw(2), ("mail",), 2, 0.0).values()
    assert [request.prompt for request in mail.requests] == ["text 0", "text 1"]


def test_adversarial_answers_are_confined_to_continuation_bytes() -> None:
    (request,) = adversarial_requests(1, 7, (*BYTES, b"ab", b"\x80\x81"))
    assert dict(request.logit_bias) == dict.fromkeys(range(0x80, 0xC0), 100.0)
    assert {0x3B1 <= ord(character) <= 0x9FA0 for character in request.prompt} == {True}
    assert adversarial_requests(1, 8, BYTES)[0].prompt != request.prompt


def test_adversarial_prompts_need_a_vocabulary_of_bytes() -> None:
    with pytest.raises(InvalidRequestError, match="name other sets with --sets"):
        adversarial_set(4, None)
    with pytest.raises(InvalidRequestError, match="none of 2 tokens is one"):
        adversarial_set(4, Vocabulary((b"a", b"b")))


def test_repetitive_texts_repeat_themselves() -> None:
    for text in repetitive_texts(10, 1):
        period = text[: len(text) // 4]
        assert any(text[start : start + len(period)] == period for start in range(1, len(text) // 2)), text


def test_quick_is_smaller_and_an_option_beats_it() -> None:
    parser = make_parser()
    assert size_of(parser.parse_args([])) == FULL
    assert FULL.concurrency == (1, 2, 4, 8, 16)
    assert size_of(parser.parse_args(["--quick"])) == QUICK
    given = size_of(parser.parse_args(["--quick", "--concurrency", "1,4"]))
    assert given == replace(QUICK, concurrency=(1, 4))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the command use a scripted ask instead of a server."""

    def patch(ask: Ask) -> None:
        monkeypatch.setattr(command, "running_server", lambda url, recipe: nullcontext("grpc://127.0.0.1:1"))
        monkeypatch.setattr(command.Client, "connect", lambda url: ScriptedClient())
        workers = lambda url, count, *, streaming: Workers([ask] * count)  # noqa: E731
        monkeypatch.setattr(command.Workers, "connect", workers)

    return patch


SMALL = ["--json", "--sets", "code", "--concurrency", "1,2", "--draft-lengths", "3"]


@pytest.mark.parametrize("is_right", [True, False])
def test_the_command_writes_its_result_with_its_conditions(
    is_right: bool, tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        time.sleep(0.001)
        return answer(5 if is_right or model == "generate_target" else 4)

    serve(ask)
    arguments = [*SMALL, "--results", str(tmp_path)]
    assert command.main(arguments) == (0 if is_right else 1)
    shown = capsys.readouterr()
    assert "; 72 requests" in shown.err
    printed = json.loads(shown.out.splitlines()[-1])
    (document,) = tmp_path.iterdir()
    assert json.loads(document.read_text(encoding="utf-8")) == printed
    assert document.name == f"{printed['run_id']}.json"
    assert ("differ from the target" in shown.out) is not is_right
    # Two speculative arms, three repetitions, 4 + 4 requests.
    assert printed["answers_that_differ"] == (0 if is_right else 2 * 3 * 8)
    assert [cell["concurrency"] for cell in printed["cells"]] == [1, 2]
    assert printed["verdict"] in ("pass", "inconclusive", "fail") and printed["verdict"].upper() in shown.out
    for cell in printed["cells"]:
        assert [arm["arm"] for arm in cell["arms"]] == ["target alone", "K=3", "adaptive"]
        assert [each["to"] for each in cell["adaptive_compared"]] == ["target alone", "K=3"]
    conditions = printed["conditions"]
    assert conditions["command"].startswith("python -m pipelines.bench --json --sets code")
    prompts = conditions["prompts"]
    assert (prompts["source"], prompts["sets"]) == ("engines/demo_pair/prompts", {"code": 4})
    assert any("lengths are unknown" in note for note in prompts["notes"])
    assert shlex.split(conditions["command"])[3:] == arguments, "it can be pasted into a shell"
    for key in ("cpu", "num_cores", "memory_gib", "git_sha", "git_dirty", "date", "load_average_1min"):
        assert key in conditions


@pytest.mark.parametrize(("named", "code"), [([], 0), (["--sets", "english,adversarial"], 1)])
def test_an_adversarial_set_that_cannot_be_made_is_left_out_unless_it_is_named(
    named: list[str], code: int, tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(lambda request, model: time.sleep(0.001) or answer())
    loads = ["--concurrency", "1", "--draft-lengths", "3", "--results", str(tmp_path)]
    assert command.main(["--recipe", "qwen3-8b-int8", "--quick", "--json", *loads, *named]) == code
    shown = capsys.readouterr()
    assert "the adversarial prompt set cannot be generated" in shown.err
    if code == 0:
        document = json.loads(shown.out.splitlines()[-1])
        assert {cell["prompt_set"] for cell in document["cells"]} == {"english"}
        assert document["conditions"]["prompts"]["source"] == general_prompts().source


def test_a_refusal_leaves_no_result(tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    num_asked = 0
    lock = threading.Lock()

    def ask(request: CompletionRequest, model: str) -> Generation:
        nonlocal num_asked
        with lock:
            num_asked += 1
            if num_asked > 40:
                raise ServerBusyError("the queue is full")
        time.sleep(0.001)
        return answer()

    serve(ask)
    assert command.main([*SMALL, "--results", str(tmp_path)]) == 1
    assert "the queue is full" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        *("--concurrency 0", "--concurrency 64", "--concurrency 999", "--repetitions 2", "--max-tokens 1"),
        *("--draft-lengths 0", "--sets code,poetry", "--sets code,code", "--temperature -1"),
        *("--temperature nan", "--prompts absent.jsonl"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments.split())
    assert caught.value.code == 2


@pytest.mark.parametrize(("num_answered", "num_tables"), [(38, 0), (80, 1)])
def test_a_bench_that_is_stopped_writes_what_it_has_measured(
    num_answered: int, num_tables: int, tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = itertools.count()

    def ask(request: CompletionRequest, model: str) -> Generation:
        if next(answered) == num_answered:  # 24 warm up and read the prompts, 36 measure the first load
            raise KeyboardInterrupt
        time.sleep(0.001)
        return answer()

    serve(ask)
    assert command.main([*SMALL, "--results", str(tmp_path)]) == 130
    shown = capsys.readouterr()
    results = [json.loads(file.read_text()) for file in tmp_path.iterdir()]
    assert [len(each["cells"]) for each in results] == [num_tables][: num_tables > 0]
    assert all(each["was_stopped"] for each in results)
    assert ("interrupted" in shown.err) is (num_tables == 0)
