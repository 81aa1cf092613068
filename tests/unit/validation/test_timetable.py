"""Tests of how much a proof asks of servers of any speed, and of how a proof ends whose time is over."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from pipelines.client import CompletionRequest
from pipelines.client.connection import TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.validation import stopping
from pipelines.validation.__main__ import _parser
from pipelines.validation.asking import Stages, ask_each
from pipelines.validation.exact.plan import NUM_COMBINATIONS, DraftLength, Limits, ProofPlan
from pipelines.validation.exact.sampling_kinds import is_greedy
from pipelines.validation.exact.timetable import NUM_MEASURED, NUM_ROUNDS, Timetable
from pipelines.validation.size import Size
from pipelines.validation.stopping import StoppedError, stop, stop_error, stoppable, stopped_early


@pytest.fixture(autouse=True)
def _goes_on() -> Iterator[None]:
    with stopped_early(None):
        yield


@dataclass
class Run:
    """A proof of a server that is as fast as it is told, on a clock of its own."""

    size: Size
    token_s: float
    num_prompts: int = 320
    noise: random.Random | None = None  # passes take a third to three times as long
    now_s: float = 0.0
    num_passes: int = 0
    lengths: list[int] = field(default_factory=list)
    asked: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})

    def __post_init__(self) -> None:
        prompts = tuple(Prompt(f"p{index}", f"text {index}") for index in range(self.num_prompts))
        limits = Limits(8, 80, DraftLength.of_server("adaptive"))
        plan = ProofPlan.of(prompts, limits, is_quick=self.size.is_quick)
        ends_at_s = math.inf if self.size.minutes is None else 60.0 * self.size.minutes
        self.timetable = Timetable(plan, self.size, ends_at_s, "nonce", lambda: self.now_s)
        answered: set[CompletionRequest] = set()
        for asked, questions in self.timetable:
            requests = [question.request for question in questions]
            cold_s = 5 * self.token_s * asked.is_cold  # reading the prompt
            together_s = self.token_s / min(3, asked.num_at_once)
            seconds = sum(cold_s + request.max_tokens * together_s for request in requests)
            seconds *= 1.3 if asked.with_cancellations else 1.0
            seconds *= 3 ** self.noise.uniform(-1, 1) if self.noise else 1
            alone_s = sum(request.max_tokens * self.token_s for request in set(requests) - answered)
            answered.update(requests)
            self.now_s += seconds + alone_s
            self.num_passes += 1
            self.lengths.append(max(request.max_tokens for request in requests))
            if asked.model != TARGET_ALONE:
                self.asked[is_greedy(asked.kind)] |= {question.prompt.prompt_id for question in questions}


@pytest.mark.parametrize("rate", [18, 60, 400, 2_000])
@pytest.mark.parametrize(("minutes", "is_quick"), [(5, True), (30, False)])
def test_all_passes_end_in_time_and_take_most_of_it(rate: float, minutes: int, is_quick: bool) -> None:
    run = Run(Size(minutes, is_quick=is_quick), 1 / rate)
    assert stop_error() is None
    fills = max(map(len, run.asked.values())) < 320
    assert (0.7 if fills else 0) * minutes < run.now_s / 60 < minutes
    assert run.num_passes >= NUM_COMBINATIONS * (1 if is_quick else NUM_ROUNDS)
    assert len(set(run.lengths[NUM_MEASURED:])) == 1, "what is asked twice is answered once"
    least = 11 if is_quick else 299
    assert min(map(len, run.asked.values())) >= least
    assert run.num_passes <= run.timetable.num_most


def test_passes_of_which_some_take_three_times_as_long_end_in_time() -> None:
    runs = [Run(Size(5, is_quick=True), 1 / 60, noise=random.Random(seed)) for seed in (5, 9)]
    assert stop_error() is None and max(run.now_s for run in runs) < 300


def test_a_faster_server_is_asked_for_longer_answers_and_more_prompts() -> None:
    slow, fast = (Run(Size(30), 1 / rate) for rate in (20, 200))
    assert (slow.lengths[0], fast.lengths[0]) == (10, 10), "a whole round of the longest draft"
    assert fast.lengths[-1] > 3 * slow.lengths[-1]
    quick = Run(Size(5, is_quick=True), 1 / 2_000)
    assert quick.lengths[-1] == 128 and quick.num_passes > 3 * NUM_COMBINATIONS, (
        "further rounds fill the time"
    )


@pytest.mark.parametrize(("size", "instead"), [(Size(5, is_quick=True), ""), (Size(30), "or --quick")])
def test_a_server_that_is_too_slow_is_told_so_after_a_few_passes(size: Size, instead: str) -> None:
    run = Run(size, 1.0)
    error = stop_error()
    assert run.num_passes == NUM_MEASURED and error is not None
    assert "at the speed of this server" in error.message and instead in error.remedy
    assert f"a proof has {size.minutes} min" in error.message
    minutes = int(error.remedy.split("--minutes ")[1].split(",")[0])
    with stopped_early(None):
        pass  # a proof that has ended lets the next one begin
    again = Run(Size(minutes, is_quick=size.is_quick), 1.0)
    assert stop_error() is None and again.now_s < 60 * minutes


def test_what_is_chosen_stays() -> None:
    run = Run(Size(30, num_prompts=320, max_tokens=7), 1 / 400)
    assert set(run.lengths) == {7} and list(map(len, run.asked.values())) == [320, 320]
    unlimited = Run(Size(None, num_prompts=1_000, max_tokens=7), 1 / 20, num_prompts=1_000)
    assert list(map(len, unlimited.asked.values())) == [1_000, 1_000], "each prompt is asked"


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ([], Size(30)),
        (["--quick"], Size(5, is_quick=True)),
        (["--quick", "--minutes", "9"], Size(9, is_quick=True)),
        (["--max-tokens", "4"], Size(30, None, 4)),
        (["--max-tokens", "4", "--num-prompts", "3"], Size(None, 3, 4)),
        (["--max-tokens", "4", "--num-prompts", "3", "--minutes", "2"], Size(2, 3, 4)),
    ],
)
def test_the_time_is_limited_unless_the_size_is_chosen(arguments: list[str], size: Size) -> None:
    assert Size.of(_parser().parse_args(arguments)) == size


def by_signal() -> None:
    stop_or_interrupt = signal.getsignal(signal.SIGTERM)
    assert callable(stop_or_interrupt)
    stop_or_interrupt(signal.SIGTERM, None)  # a real one could end this process


def by_time() -> None:
    stop("its 1 min are over", "give it more")


@pytest.mark.parametrize(("ends", "why"), [(by_signal, "SIGTERM"), (by_time, "its 1 min are over")])
def test_what_was_asked_before_the_end_is_kept(ends: Callable[[], None], why: str) -> None:
    def ask(number: int) -> int:
        if number == 3:
            ends()
        return number

    with stopped_early(None):
        answers = [stoppable(ask)(number) for number in range(4)]
        with pytest.raises(StoppedError, match=why):
            stoppable(ask)(4)
        by_time()
        assert why in str(stop_error()), "the first reason stands"
    assert answers == [0, 1, 2, 3] and stop_error() is None


def test_a_proof_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_SECONDS", 0.02)
    with stopped_early(2) as ends_at_s:
        assert ends_at_s - time.monotonic() < 0.05
        answers = ask_each("x", lambda number: time.sleep(0.01), range(1000), 1, lambda *progress: None)
    assert isinstance(answers[-1], StoppedError) and answers[0] is None


def test_stages_say_from_the_beginning_what_is_asked_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = count(0, 10)  # each look at the clock takes 10 s
    stages = Stages(4, 300.0, lambda: float(next(seconds)))
    stages("control", 0, 8)
    assert capsys.readouterr().err == "[1/4, 5 min left] control: 8 questions\n"
    stages("control x8", 0, 8)
    assert capsys.readouterr().err == "[2/4, 90 s left] control x8: 8 questions\n"
    stages = Stages(None, 300.0, lambda: float(next(seconds)))
    stages("candidate", 0, 8)
    assert capsys.readouterr().err == "[1, 4 min left] candidate: 8 questions\n"
