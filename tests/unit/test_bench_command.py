"""The bench's command line and prompts; run: pytest tests/unit/test_bench_command.py."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench import __main__ as command
from pipelines.bench.generated_prompts import adversarial_requests, repetitive_texts
from pipelines.bench.loads import NUM_ARRIVALS
from pipelines.bench.options import FULL, QUICK, make_parser, size_of
from pipelines.bench.plan import num_requests_needed
from pipelines.bench.prompt_sets import SET_NAMES, adversarial_set, read_prompt_sets
from pipelines.client import CompletionRequest, Generation
from pipelines.client.at_once import Ask, Workers
from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.prompts import HELD_OUT
from pipelines.text.vocabulary import Vocabulary
from tests.unit.bench_answers import answer

BYTES = tuple(bytes([value]) for value in range(256))


def test_prompt_sets_are_the_same_each_time_and_large_enough() -> None:
    sets = read_prompt_sets(SET_NAMES, 32, 0.8, HELD_OUT)
    assert set(sets) == {"code", "mixed", "repetitive"}
    sets["adversarial"] = adversarial_set(32, Vocabulary(BYTES))
    again = read_prompt_sets(SET_NAMES, 32, 0.8, HELD_OUT)
    for name, prompt_set in sets.items():
        assert len({request.prompt for request in prompt_set.requests}) == 32, name
        if name != "adversarial":
            assert prompt_set.requests == again[name].requests
            assert {request.temperature for request in prompt_set.requests} == {0.8}
            assert len({request.seed for request in prompt_set.requests}) == 32
    assert {request.temperature for request in sets["adversarial"].requests} == {0.0}
    assert sets["adversarial"].requests == adversarial_set(32, Vocabulary(BYTES)).requests


def test_adversarial_answers_are_confined_to_continuation_bytes() -> None:
    (request,) = adversarial_requests(1, 7, (*BYTES, b"ab", b"\x80\x81"))
    assert dict(request.logit_bias) == dict.fromkeys(range(0x80, 0xC0), 100.0)
    assert {0x3B1 <= ord(character) <= 0x9FA0 for character in request.prompt} == {True}
    assert adversarial_requests(1, 8, BYTES)[0].prompt != request.prompt


def test_adversarial_prompts_need_a_vocabulary_of_bytes() -> None:
    with pytest.raises(InvalidRequestError, match="--sets code,mixed,repetitive"):
        adversarial_set(4, None)
    with pytest.raises(InvalidRequestError, match="none of them a continuation byte"):
        adversarial_set(4, Vocabulary((b"a", b"b")))


def test_repetitive_texts_repeat_themselves() -> None:
    for text in repetitive_texts(10, 1):
        period = text[: len(text) // 4]
        assert any(text[start : start + len(period)] == period for start in range(1, len(text) // 2)), text


def test_a_plan_asks_for_as_many_requests_as_its_greatest_load_needs() -> None:
    assert num_requests_needed((1,), (0.5,)) == NUM_ARRIVALS
    assert num_requests_needed((1, 16), (0.5,)) == 32


def test_quick_is_smaller_and_an_option_beats_it() -> None:
    parser = make_parser()
    assert size_of(parser.parse_args([])) == FULL
    assert FULL.concurrency == (1, 2, 4, 8, 16)
    assert size_of(parser.parse_args(["--quick"])) == QUICK
    given = size_of(parser.parse_args(["--quick", "--rates", "1.1,0.5", "--sets", "mixed"]))
    assert given == replace(QUICK, rates=(0.5, 1.1), sets=("mixed",))


class FakeClient:
    """Stands in for a connected client on the command line."""

    def server_version(self) -> str:
        return "2.51.0"

    def model_parameters(self, model: str) -> dict[str, str]:
        return {}

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the command talk to an ask instead of a server."""

    @contextmanager
    def server(url: str, recipe: str) -> Iterator[str]:
        yield "grpc://127.0.0.1:1"

    def patch(ask: Ask) -> None:
        monkeypatch.setattr(command, "running_server", server)
        monkeypatch.setattr(command.Client, "connect", lambda url: FakeClient())
        monkeypatch.setattr(
            command.Workers, "connect", lambda url, count, *, streaming: Workers([ask] * count)
        )

    return patch


SMALL = ["--sets", "code", "--concurrency", "1,2", "--rates", "0.9", "--draft-lengths", "3"]


@pytest.mark.parametrize("is_right", [True, False])
def test_the_command_writes_its_result_and_page_with_their_conditions(
    is_right: bool, tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        time.sleep(0.001)
        return answer(5 if is_right or model == "generate_target" else 4)

    serve(ask)
    arguments = [*SMALL, "--slo-ttft-ms", "1000", "--results", str(tmp_path)]
    assert command.main(arguments) == (0 if is_right else 1)
    shown = capsys.readouterr()
    assert "27 measurements, about" in shown.err
    printed = json.loads(shown.out.splitlines()[-1])
    page, document = sorted(tmp_path.iterdir())
    assert (page.suffix, document.suffix) == (".html", ".json")
    assert json.loads(document.read_text(encoding="utf-8")) == printed
    assert document.stem == printed["run_id"] == page.stem
    assert ("differ from the target" in page.read_text(encoding="utf-8")) is not is_right
    # Two speculative arms, three repetitions, 4 + 4 + 16 requests.
    assert printed["answers_that_differ"] == (0 if is_right else 2 * 3 * 24)
    assert printed["slo"] == {"ttft_s": 1.0, "itl_s": 1.0}  # twice the 0.5 s of an idle target alone
    conditions = printed["conditions"]
    assert conditions["command"].startswith("python -m pipelines.bench --sets code")
    for key in ("cpu", "num_cores", "memory_gib", "git_sha", "git_dirty", "date", "load_average_1min"):
        assert key in conditions


def test_a_refused_request_leaves_no_result(
    tmp_path: Path, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
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
        ["--concurrency", "0"],
        ["--concurrency", "999"],
        ["--repetitions", "2"],
        ["--max-tokens", "1"],
        ["--draft-lengths", "0"],
        ["--sets", "code,poetry"],
        ["--sets", "code,code"],
        ["--rates", "0"],
        ["--rates", "inf"],
        ["--temperature", "-1"],
        ["--slo-ttft-ms", "nan"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2


def test_no_server_is_an_error_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--url", "grpc://127.0.0.1:9"]) == 1
    assert "not ready" in json.loads(capsys.readouterr().out)["error"]
