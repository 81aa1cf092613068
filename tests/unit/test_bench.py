"""The bench against scripted servers: figures from known latencies, arms in turn, nothing timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.bench import __main__ as command
from pipelines.bench.batcher_overhead import measure_overhead
from pipelines.bench.decode_step import measure_decode_step
from pipelines.bench.figures import (
    best_draft_lengths,
    figures_of,
    num_different_answers,
    spread_of_few,
    spread_of_many,
)
from pipelines.bench.load import TARGET_ALONE, Arm, Measurement, Plan, measure, num_requests
from pipelines.bench.memory_bandwidth import MemoryBandwidth, measure_memory_bandwidth
from pipelines.bench.report import as_document, conclusion, table
from pipelines.client import CompletionRequest, Generation
from pipelines.client.at_once import Workers
from pipelines.errors import ServerBusyError, VerificationError
from pipelines.prompts import Prompt

PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(16))


def answer(num_tokens: int = 5, ttft: float | None = 1.0, e2e: float = 3.0, **changes: int) -> Generation:
    ids = tuple(range(num_tokens))
    return replace(Generation("", ids, (), "length", 0, 0, 0, (), ttft, e2e), **changes)  # type: ignore[arg-type]


def measured(arm: Arm, num_at_once: int, repetition: int, wall_s: float, *given: Generation) -> Measurement:
    return Measurement(arm, num_at_once, repetition, given or (answer(), answer()), wall_s)


def test_figures_follow_their_formulas() -> None:
    k4 = Arm("generate", 4)
    drafted = answer(ttft=0.5, e2e=1.5, num_rounds=2, total_draft_tokens=8, total_accepted_draft_tokens=3)
    figures = figures_of(
        [
            measured(TARGET_ALONE, 1, 0, 2.0),  # 10 tokens in 2 s
            measured(k4, 1, 0, 1.0, drafted, drafted),
            measured(TARGET_ALONE, 1, 1, 1.0),
            measured(k4, 1, 1, 1.0, drafted, drafted),
            measured(TARGET_ALONE, 1, 2, 4.0),
            measured(k4, 1, 2, 1.0, drafted, drafted),
        ]
    )
    alone, both = figures
    assert alone.output_tokens_per_s == spread_of_few([5.0, 10.0, 2.5])
    # Ratios are taken within a repetition: 2, 1 and 4, not the ratio of the medians.
    assert (both.ratio_to_target.median, both.ratio_to_target.low, both.ratio_to_target.high) == (2, 1, 4)
    assert alone.ratio_to_target == spread_of_few([1.0, 1.0, 1.0])
    assert both.ttft_s is not None
    assert both.itl_s is not None
    assert (both.ttft_s.median, both.itl_s.median, both.e2e_latency_s.median) == (0.5, 0.25, 1.5)
    assert both.acceptance_rate == 3 / 8
    assert both.mean_acceptance_length == 2.5
    assert (both.num_requests, both.num_output_tokens) == (6, 30)
    assert alone.acceptance_rate is None


def test_spreads() -> None:
    assert (spread_of_few([3.0, 1.0, 2.0]).low, spread_of_few([3.0, 1.0, 2.0]).high) == (1.0, 3.0)
    quartiles = spread_of_many([None, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert quartiles is not None
    assert (quartiles.low, quartiles.median, quartiles.high) == (2.0, 3.0, 4.0)
    assert spread_of_many([7.0]) == spread_of_few([7.0])
    assert spread_of_many([None, None]) is None


def test_the_best_draft_length_is_chosen_per_load() -> None:
    figures = figures_of(
        [
            measured(TARGET_ALONE, 1, 0, 1.0),
            measured(Arm("generate", 2), 1, 0, 0.5),
            measured(Arm("generate", 6), 1, 0, 0.25),
            measured(TARGET_ALONE, 8, 0, 1.0),
            measured(Arm("generate", 2), 8, 0, 1.25),
            measured(Arm("generate", 6), 8, 0, 2.0),
        ]
    )
    best = best_draft_lengths(figures)
    assert [(load, entry.arm.num_draft_tokens) for load, entry in best.items()] == [(1, 6), (8, 2)]
    text = conclusion(figures, None, [])
    assert "best at 1 at once: K=6, 4.00 times" in text
    assert "best at 8 at once: K=2, 0.80 times" in text
    assert len(table(figures).splitlines()) == 2 + 6
    document = json.loads(json.dumps(as_document(figures, None, [], 0)))
    assert document["best"]["8"]["num_draft_tokens"] == 2


def test_an_arm_without_a_counterpart_or_output_is_not_compared() -> None:
    with pytest.raises(VerificationError, match="cannot be compared"):
        figures_of([measured(Arm("generate", 2), 1, 0, 1.0)])
    with pytest.raises(VerificationError, match="cannot be compared"):
        figures_of([measured(TARGET_ALONE, 1, 0, 1.0, answer(0))])


def test_other_answers_are_counted() -> None:
    measurements = [
        measured(TARGET_ALONE, 1, 0, 1.0, answer(3), answer(4)),
        measured(Arm("generate", 2), 1, 0, 1.0, answer(3), answer(5)),
        measured(TARGET_ALONE, 1, 1, 1.0, answer(3), answer(4)),
    ]
    assert num_different_answers(measurements) == 1


def test_arms_are_warmed_up_and_then_measured_in_turn() -> None:
    asked: list[str] = []

    def ask(request: CompletionRequest, model: str) -> Generation:
        asked.append(f"{model}:{request.num_draft_tokens}")
        return answer()

    plan = Plan(PROMPTS, (1, 2), (2, 4), 8, 2)
    measurements = measure(plan, Workers([ask] * 2))
    alone, k2, k4 = "generate_target:None", "generate:2", "generate:4"
    at_one = asked[: 3 * 3 * num_requests(1)]
    in_order = at_one[:: num_requests(1)]
    assert in_order == [alone, k2, k4, alone, k2, k4, k2, k4, alone]  # warm-up, then turns
    assert len(measurements) == 2 * 2 * 3
    assert {len(measurement.generations) for measurement in measurements} == {4}
    assert num_requests(8) == 16


def test_a_failed_request_ends_the_bench() -> None:
    def busy(request: CompletionRequest, model: str) -> Generation:
        raise ServerBusyError("full")

    with pytest.raises(ServerBusyError):
        measure(Plan(PROMPTS, (1,), (2,), 8, 1), Workers([busy]))


def test_the_decode_step_is_the_time_between_tokens() -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        assert (model, request.num_draft_tokens) == ("generate_target", None)
        return answer(request.max_tokens, None, 0.100 + 0.020 * (request.max_tokens - 1))

    bandwidths = iter([10e9, 20e9, 40e9])
    step = measure_decode_step(
        ask, PROMPTS[:2], 11, 200_000_000, 2, lambda n: MemoryBandwidth(next(bandwidths), 1.0, n)
    )
    assert step.step_ms == pytest.approx(20.0)
    assert step.floor_ms == pytest.approx(10.0)  # 0.2 GB at 20 GB/s
    assert step.ratio == pytest.approx(2.0)
    assert step.bandwidth_range_gb_per_s == (10.0, 40.0)
    assert "step_ms 20.00, floor_ms 10.00" in conclusion([], step, [])


def test_answers_of_one_token_give_no_decode_step() -> None:
    measure_nothing = lambda n: MemoryBandwidth(1e9, 1e9, n)  # noqa: E731
    with pytest.raises(VerificationError, match="decode step"):
        measure_decode_step(lambda request, model: answer(1), PROMPTS[:1], 8, 1, 2, measure_nothing)


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


@pytest.mark.parametrize("is_right", [True, False])
def test_the_command_writes_its_result_with_its_conditions(
    is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        return answer(5 if is_right or model == "generate_target" else 4)

    @contextmanager
    def server(url: str, recipe: str) -> Iterator[str]:
        yield "grpc://127.0.0.1:1"

    monkeypatch.setattr(command, "running_server", server)
    monkeypatch.setattr(command.Client, "connect", lambda url: FakeClient())
    workers = lambda url, count, *, streaming: Workers([ask] * count)  # noqa: E731
    monkeypatch.setattr(command.Workers, "connect", workers)
    arguments = ["--concurrency", "1,2", "--draft-lengths", "3", "--repetitions", "1"]
    assert command.main([*arguments, "--results", str(tmp_path)]) == (0 if is_right else 1)
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text(encoding="utf-8")) == printed
    assert path.stem == printed["run_id"]
    assert printed["answers_that_differ"] == (0 if is_right else 8)
    conditions = printed["conditions"]
    assert conditions["command"].startswith("python -m pipelines.bench --concurrency 1,2")
    for key in ("cpu", "num_cores", "memory_gib", "git_sha", "git_dirty", "date", "load_average_1min"):
        assert key in conditions
    assert set(printed["best"]) == {"1", "2"}


@pytest.mark.parametrize(
    "arguments",
    [["--concurrency", "0"], ["--repetitions", "0"], ["--max-tokens", "1"], ["--concurrency", "999"]],
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
