"""The bench against scripted servers: what is asked and when; run: pytest tests/unit/test_bench.py."""

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
from pipelines.bench.arms import ADAPTIVE, TARGET_ALONE
from pipelines.bench.batcher_overhead import measure_overhead
from pipelines.bench.decode_step import measure_decode_step
from pipelines.bench.domain_shift import measure_domain_shift
from pipelines.bench.generated_prompts import adversarial_requests, repetitive_texts
from pipelines.bench.loads import NUM_ARRIVALS, ClosedLoop, OpenLoop
from pipelines.bench.measuring import measure, num_different_answers, run_once, warm_up
from pipelines.bench.memory_bandwidth import MemoryBandwidth, measure_memory_bandwidth
from pipelines.bench.options import FULL, QUICK, make_parser, size_of
from pipelines.bench.plan import Cell, Pace, describe, expected_seconds, num_requests_needed
from pipelines.bench.progress import MeasurementProgress
from pipelines.bench.prompt_sets import SET_NAMES, adversarial_set, read_prompt_sets
from pipelines.client import CompletionRequest, Generation
from pipelines.client.at_once import Ask, Job, Workers
from pipelines.errors import EngineFailedError, InvalidRequestError, ServerBusyError, VerificationError
from pipelines.prompts import HELD_OUT
from pipelines.text.vocabulary import Vocabulary
from tests.unit.bench_answers import CODE, K2, ODD, REQUESTS, answer, measured, plan

PACE = Pace(single_s=1.0, capacity_per_s={"code": 4.0, "adversarial": 4.0}, num_at_once=16)
FAST = Pace(single_s=1e-3, capacity_per_s={"code": 1e4}, num_at_once=16)
BYTES = tuple(bytes([value]) for value in range(256))


class Asked:
    """An ask that notes what it was asked, and answers at once."""

    def __init__(self) -> None:
        self.arms: list[str] = []
        self.requests: list[CompletionRequest] = []

    def __call__(self, request: CompletionRequest, model: str) -> Generation:
        self.requests.append(request)
        self.arms.append(f"{model}:{request.num_draft_tokens}")
        return answer()


def test_arms_are_measured_in_turn_beginning_with_another_one_each_time() -> None:
    asked = Asked()
    measurements = measure(
        plan(concurrency=(1,), shares_of_capacity=()), FAST, Workers([asked]), lambda done: None
    )
    alone, k2, k4, adaptive = "generate_target:None", "generate:2", "generate:4", "generate:None"
    num_requests = ClosedLoop(1).num_requests
    assert asked.arms[::num_requests] == [
        *(alone, k2, k4, adaptive),
        *(k2, k4, adaptive, alone),
        *(k4, adaptive, alone, k2),
    ]
    assert [measurement.repetition for measurement in measurements] == [0] * 4 + [1] * 4 + [2] * 4


def test_every_cell_has_every_arm_equally_often() -> None:
    whole = plan(prompt_sets=(CODE, ODD))
    workers = Workers([Asked()] * NUM_ARRIVALS)
    pace = replace(FAST, capacity_per_s={"code": 1e4, "adversarial": 1e4})
    measurements = measure(whole, pace, workers, lambda done: None)
    assert len(measurements) == 2 * 3 * 4 * 3
    assert {str(each.cell) for each in measurements} == {
        f"{name}, {load}"
        for name in ("code", "adversarial")
        for load in ("1 at once", "2 at once", "arrivals at 0.5 of capacity")
    }


def test_all_arms_of_a_repetition_have_the_same_arrivals_and_each_repetition_others() -> None:
    seen: list[tuple[float, ...]] = []

    class Watched(Workers):
        def run(self, jobs: Any, num_at_once: int, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["arrivals_s"])
            return super().run(jobs, num_at_once, *args, **kwargs)

    whole = plan(concurrency=(1,), shares_of_capacity=(0.5,))
    measure(whole, FAST, Watched([Asked()] * NUM_ARRIVALS), lambda done: None)
    arrivals = seen[12:]  # after the closed loop
    assert [len(set(arrivals[first : first + 4])) for first in (0, 4, 8)] == [1, 1, 1]
    assert len(set(arrivals)) == 3
    assert len(arrivals[0]) == NUM_ARRIVALS


def test_a_job_begins_at_its_arrival_and_a_wait_for_a_worker_counts() -> None:
    begun: list[float] = []

    def ask(request: CompletionRequest, model: str) -> Generation:
        begun.append(time.monotonic())
        time.sleep(0.2)
        return answer(ttft=0.1, e2e=0.2)

    jobs = [Job(request, "generate") for request in REQUESTS[:3]]
    started = time.monotonic()
    first, second, third = Workers([ask]).run(jobs, 1, arrivals_s=(0.05, 0.06, 0.6))
    assert begun[0] - started >= 0.05
    assert begun[2] - started >= 0.6
    assert isinstance(first, Generation) and isinstance(second, Generation) and isinstance(third, Generation)
    assert second.ttft_s is not None
    # The second arrived at 0.06 s and began when the only worker was free, after 0.25 s.
    assert (
        second.ttft_s - 0.1
        == pytest.approx(second.e2e_latency_s - 0.2)
        == pytest.approx(begun[1] - started - 0.06, abs=0.03)
    )
    assert second.e2e_latency_s > first.e2e_latency_s + 0.1
    assert third.e2e_latency_s < second.e2e_latency_s


def test_a_full_queue_ends_the_bench_and_says_at_which_load() -> None:
    def busy(request: CompletionRequest, model: str) -> Generation:
        raise ServerBusyError("full", limit="max_queue_size=64")

    cell = Cell(CODE, OpenLoop(1.1))
    with pytest.raises(VerificationError, match=r"K=2 \(code, arrivals at 1.1 of capacity\).*--rates"):
        run_once(cell, K2, 8, Workers([busy] * NUM_ARRIVALS), arrivals_s=[0.0] * NUM_ARRIVALS)


def test_another_failed_request_ends_the_bench() -> None:
    def broken(request: CompletionRequest, model: str) -> Generation:
        raise EngineFailedError("broken")

    with pytest.raises(EngineFailedError):
        run_once(Cell(CODE, ClosedLoop(1)), K2, 8, Workers([broken]))


def test_warm_up_asks_every_arm_at_the_greatest_load_and_measures_the_target_alone() -> None:
    asked = Asked()
    pace, alone = warm_up(plan(concurrency=(1, 4)), Workers([asked] * 4))
    num_requests = ClosedLoop(4).num_requests
    assert set(asked.arms) == {"generate_target:None", "generate:2", "generate:4", "generate:None"}
    assert len(asked.arms) == 4 * num_requests + ClosedLoop(1).num_requests
    assert [(each.arm, str(each.cell)) for each in alone] == [
        (TARGET_ALONE, "code, 4 at once"),
        (TARGET_ALONE, "code, 1 at once"),
    ]
    assert pace.capacity_per_s["code"] == pytest.approx(num_requests / alone[0].wall_s)
    assert pace.single_s == pytest.approx(alone[1].wall_s / ClosedLoop(1).num_requests)


def test_other_answers_are_counted_at_every_load() -> None:
    one, two, poisson = (Cell(CODE, load) for load in (ClosedLoop(1), ClosedLoop(2), OpenLoop(0.5)))
    measurements = [
        measured(one, K2, 0, 1.0, answer(3), answer(4)),  # before the target alone, as in a later turn
        measured(one, TARGET_ALONE, 0, 1.0, answer(3), answer(4)),
        measured(two, K2, 0, 1.0, answer(3), answer(5)),
        measured(poisson, ADAPTIVE, 0, 1.0, answer(2), answer(4)),
        measured(two, TARGET_ALONE, 0, 1.0, answer(3), answer(4), answer(1)),
        measured(Cell(ODD, ClosedLoop(1)), TARGET_ALONE, 0, 1.0, answer(1)),
    ]
    assert num_different_answers(measurements) == 2


def test_the_target_alone_that_differs_from_itself_is_counted_too() -> None:
    cell = Cell(CODE, ClosedLoop(1))
    measurements = [
        measured(cell, TARGET_ALONE, repetition, 1.0, answer(3 + repetition)) for repetition in (0, 1)
    ]
    assert num_different_answers(measurements) == 1


def test_the_expected_time_follows_the_measured_pace() -> None:
    # 1 request/s alone and 4 at 16 at once: a power law with exponent 1/2.
    assert PACE.seconds_of(Cell(CODE, ClosedLoop(1))) == pytest.approx(4.0)
    assert PACE.seconds_of(Cell(CODE, ClosedLoop(4))) == pytest.approx(8 / 2)
    assert PACE.seconds_of(Cell(CODE, ClosedLoop(16))) == pytest.approx(32 / 4)
    own_s = 16 / 4 / 2
    assert PACE.seconds_of(Cell(CODE, OpenLoop(0.5))) == pytest.approx(NUM_ARRIVALS / 2 + own_s)
    assert PACE.seconds_of(Cell(CODE, OpenLoop(2.0))) == pytest.approx(NUM_ARRIVALS / 4 + own_s)
    whole = plan(concurrency=(1, 16), shares_of_capacity=(0.5,))
    assert expected_seconds(whole, PACE) == pytest.approx((4 + 8 + 10) * 3 * 4)
    assert "36 measurements, about 4 minutes" in describe(whole, PACE)


def test_progress_scales_what_is_left_by_what_was_needed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = MeasurementProgress(plan(concurrency=(1,), shares_of_capacity=()), PACE)
    progress(measured(Cell(CODE, ClosedLoop(1)), K2, 0, 8.0))  # twice the 4 s that were expected
    line = capsys.readouterr().err
    assert line.startswith("[1/12, 1 min left] code, 1 at once, repetition 1, K=2: 1.2 tokens/s")  # 11 * 8 s


def test_the_domain_shift_is_asked_in_one_go_and_there_and_back() -> None:
    asked: list[tuple[str, str]] = []

    def ask(request: CompletionRequest, model: str) -> Generation:
        is_odd = request.prompt.startswith("odd")
        asked.append((model, request.prompt[:3]))
        time.sleep(0.001)
        return answer(draft_lengths=(0, *([0] * 4 if is_odd else [6] * 4)))

    odd = replace(ODD, requests=tuple(replace(each, prompt=f"odd {each.prompt}") for each in REQUESTS))
    phases = measure_domain_shift(CODE, odd, 8, 3, Workers([ask]))
    assert [phase.prompt_set for phase in phases] == ["code", "adversarial", "code"]
    assert [phase.settled_length for phase in phases] == [6, 0, 6]
    assert [phase.rounds_to_follow for phase in phases] == [(), (0, 0, 0), (0, 0, 0)]
    runs = [asked[first][0] for first in range(0, len(asked), 12)]
    alone, both = "generate_target", "generate"
    assert runs == [alone, both, both, alone, alone, both]
    assert [prompt for _, prompt in asked[:12:4]] == ["tex", "odd", "tex"]


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
    assert request.prompt.isprintable() and not request.prompt.isascii()
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


def test_the_decode_step_is_the_time_between_tokens() -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        assert (model, request.num_draft_tokens) == ("generate_target", None)
        return answer(request.max_tokens, None, 0.100 + 0.020 * (request.max_tokens - 1))

    bandwidths = iter([10e9, 20e9, 40e9])
    step = measure_decode_step(
        ask, REQUESTS[:2], 11, 200_000_000, 2, lambda n: MemoryBandwidth(next(bandwidths), 1.0, n)
    )
    assert step.step_ms == pytest.approx(20.0)
    assert step.floor_ms == pytest.approx(10.0)  # 0.2 GB at 20 GB/s
    assert step.ratio == pytest.approx(2.0)
    assert step.bandwidth_range_gb_per_s == (10.0, 40.0)


def test_answers_of_one_token_give_no_decode_step() -> None:
    measure_nothing = lambda n: MemoryBandwidth(1e9, 1e9, n)  # noqa: E731
    with pytest.raises(VerificationError, match="decode step"):
        measure_decode_step(lambda request, model: answer(1), REQUESTS[:1], 8, 1, 2, measure_nothing)


def test_memory_bandwidth_is_measured_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.bench.memory_bandwidth._BUFFER_BYTES", 2**20)
    for num_threads in (1, 3):
        measured_now = measure_memory_bandwidth(num_threads)
        assert measured_now.bytes_per_s >= measured_now.median_bytes_per_s > 0
        assert measured_now.num_threads == num_threads


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


def test_the_batcher_is_measured_on_engines_that_compute_nothing() -> None:
    plain, speculative = measure_overhead(2, 0), measure_overhead(2, 4)
    # 256 tokens each: one step per token; or 51 rounds of 4 draft steps and one verification that emit 5
    # tokens each, after one step of each engine for the prompt.
    assert plain.num_steps == 256
    assert speculative.num_steps == 2 + 51 * 5
    assert plain.ms_per_step > 0 and speculative.ms_per_step > 0
