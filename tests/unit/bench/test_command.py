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
from pipelines.bench.measuring import Ask
from pipelines.bench.options import FULL, QUICK, make_parser, size_of
from pipelines.bench.prompt_sets import draw_sets, make_prompt_sets, names_of_sets
from pipelines.client import CompletionRequest, Generation
from pipelines.command_line.general_prompts import general_prompts
from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import InvalidRequestError, ServerBusyError
from tests.support.demo_prompts import DEMO_PROMPTS
from tests.unit.bench.answers import answer
from tests.unit.client.scripted_client import ScriptedClient


def test_prompt_sets_are_the_same_each_time_and_large_enough() -> None:
    prompts = read_prompts(DEMO_PROMPTS)
    names = names_of_sets(prompts, None, is_quick=False)
    assert names == ("code", "mixed", "adversarial", "repetitive")
    drawn = draw_sets(prompts, names, 32)
    sets, again = make_prompt_sets(drawn, 0.8), make_prompt_sets(drawn, 0.8)
    assert tuple(each.name for each in sets) == names
    for prompt_set, other in zip(sets, again, strict=True):
        assert len({request.prompt for request in prompt_set.requests}) == 32, prompt_set.name
        assert prompt_set.requests == other.requests
        assert {request.temperature for request in prompt_set.requests} == {0.8}
        assert len({request.seed for request in prompt_set.requests}) == 32


def test_sets_are_those_of_the_pairs_own_prompts() -> None:
    mail = tuple(Prompt(str(number), f"text {number}") for number in range(9))
    prompts = Prompts("mine", {"mail": mail, "notes": (Prompt("a", "note"),)})
    assert names_of_sets(prompts, None, is_quick=False) == ("mail", "notes")
    assert names_of_sets(prompts, None, is_quick=True) == ("mail",)
    assert names_of_sets(prompts, ["notes"], is_quick=True) == ("notes",)
    with pytest.raises(InvalidRequestError, match=r"no prompt set code: mine has mail, notes"):
        names_of_sets(prompts, ["mail", "code"], is_quick=False)
    with pytest.raises(InvalidRequestError, match=r"too few prompts, 10 are needed .*: mine: mail: 9"):
        draw_sets(prompts, ("mail",), 10)
    (drawn,) = make_prompt_sets(draw_sets(prompts, ("mail",), 2), 0.0)
    assert [request.prompt for request in drawn.requests] == ["text 0", "text 1"]


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
        monkeypatch.setattr(command, "streaming", lambda client: ask)

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


def test_a_short_bench_without_own_prompts_asks_the_largest_of_the_general_sets(
    tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(lambda request, model: time.sleep(0.001) or answer())
    loads = ["--concurrency", "1", "--draft-lengths", "3", "--results", str(tmp_path)]
    assert command.main(["--recipe", "qwen3-8b-int8", "--quick", "--json", *loads]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
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
        *("--draft-lengths 0", "--sets code,poetry", "--temperature -1"),
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
