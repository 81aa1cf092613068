"""Tests of what is published as metrics: the thread, times of tokens, and the alarm of acceptance."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.watched_draft import LEAST_DRAFT_TOKENS, MEMORY_S, AcceptanceAlarm
from pipelines.triton.backend import gauges
from pipelines.triton.backend.gauges import Gauges, TokenTimes
from pipelines.triton.engine.speculative_model import watch_speculation
from tests.support.recorded_gauges import RecordedGauges


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


class Backend:
    """A replacement for ``triton_python_backend_utils`` that keeps the values by name and labels."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.observed: list[float] = []
        values, observed = self.values, self.observed

        class Metric:
            def __init__(self, name: str, labels: dict[str, str]) -> None:
                self._key = name, tuple(sorted(labels.items()))

            def set(self, value: float) -> None:
                values[self._key] = value

            def increment(self, value: float) -> None:
                assert value >= 0, "the real one ends the process"
                values[self._key] = values.get(self._key, 0.0) + value

            def observe(self, value: float) -> None:
                if value < 0:
                    raise RuntimeError("Triton refuses the value")
                observed.append(value)

        class Family:
            COUNTER, GAUGE, HISTOGRAM = range(3)

            def __init__(self, name: str, description: str, kind: int) -> None:
                self._name = name

            def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Any:
                return Metric(self._name, labels)

        self.MetricFamily = Family


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.setattr(gauges, "INTERVAL_S", 0.001)
    return Backend()


@contextmanager
def publishing(published: Gauges) -> Iterator[None]:
    published.start()
    try:
        yield
    finally:
        published.stop()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_a_figure_that_cannot_be_read_leaves_the_others_alone_and_comes_back(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    is_readable, num_reads = True, 0

    def read() -> float:
        nonlocal num_reads
        num_reads += 1
        if not is_readable:
            raise OSError("gone")
        return num_reads

    published = Gauges(backend, "m")
    broken = "draftproof_requests_running", (("model", "m"),)
    healthy = "draftproof_requests_waiting", (("model", "m"),)
    published.add(broken[0], read)
    published.add(healthy[0], lambda: num_reads)
    with publishing(published):
        wait_until(lambda: backend.values.get(broken, 0) > 2)
        is_readable = False
        begun = num_reads
        wait_until(lambda: backend.values[healthy] > begun + 10)
        assert backend.values[broken] <= begun + 1
        is_readable = True
        begun = num_reads
        wait_until(lambda: backend.values[broken] > begun)
    records = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert records == [
        (logging.ERROR, "metric draftproof_requests_running could not be published; retrying"),
        (logging.WARNING, "metric draftproof_requests_running is published again"),
    ]


def test_a_counter_that_falls_waits_until_it_rises(backend: Backend) -> None:
    published, readings = Gauges(backend, "m"), iter((5, 2, 4, 7))
    last = 0

    def read() -> float:
        nonlocal last
        last = next(readings, last)
        return last

    published.add("draftproof_output_tokens_total", read)
    key = "draftproof_output_tokens_total", (("model", "m"),)
    with publishing(published):
        wait_until(lambda: backend.values.get(key) == 7)


def test_a_value_that_triton_refuses_does_not_end_its_histogram(backend: Backend) -> None:
    published = Gauges(backend, "m")
    observe = published.add_histogram("vllm:time_to_first_token_seconds", (1.0, 2.0))
    with publishing(published):
        for value in (1.0, -1.0, 2.0):
            observe(value)
        wait_until(lambda: backend.observed == [1.0, 2.0])


def test_the_counts_of_speculation_are_published(backend: Backend) -> None:
    published = Gauges(backend, "m", "demo")
    totals = SpeculationStatistics(
        max_draft_len=2, num_drafting_rounds=1, total_draft_tokens=2, total_accepted_draft_tokens=1
    )
    watch_speculation(published, totals)
    labels = (("engine", "0"), ("model", "m"), ("model_name", "demo"))
    last = "vllm:spec_decode_num_accepted_tokens_per_pos_total", (*labels, ("position", "1"))
    with publishing(published):
        wait_until(lambda: last in backend.values)
    counted = {
        name.removeprefix("vllm:spec_decode_num_"): value
        for (name, found), value in backend.values.items()
        if name.startswith("vllm:spec_decode_") and found == labels
    }
    assert counted == {"drafts_total": 1, "draft_tokens_total": 2, "accepted_tokens_total": 1}


def test_the_rate_is_that_of_about_the_last_minute() -> None:
    clock = Clock()
    alarm = AcceptanceAlarm(clock)
    assert alarm.rate is None
    alarm.add(10, 9)
    alarm.add(10, 1)
    assert alarm.rate == 0.5
    clock.now_s += MEMORY_S
    alarm.add(10, 1)
    assert alarm.rate == pytest.approx((10 / math.e + 1) / (20 / math.e + 10))
    clock.now_s += 10 * MEMORY_S
    assert alarm.rate is None
    alarm.add(10, 9)
    assert alarm.rate == pytest.approx(0.9, abs=1e-3)


def test_a_pair_that_does_not_fit_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    alarm = AcceptanceAlarm(Clock())
    for _ in range(LEAST_DRAFT_TOKENS // 10 - 1):
        alarm.add(10, 1)
    assert not caplog.records, "a few tokens are no evidence"
    for _ in range(50):
        alarm.add(10, 1)
    assert len(caplog.records) == 1 and alarm.is_unfit
    assert "num_draft_tokens: 0" in caplog.text
    for _ in range(1000):
        alarm.add(10, 9)
    assert not alarm.is_unfit


TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:request_time_per_output_token_seconds"


@pytest.mark.parametrize(
    ("responses", "ttft", "itl"),
    [
        ([(0.5, 1, False), (1.0, 4, False), (2.5, 6, True)], [0.5], [0.4]),
        ([(0.5, 1, True)], [0.5], []),
        ([(0.5, 0, True)], [], []),
        ([(0.5, 3, True)], [0.5], []),  # one response: there is no time between its tokens
    ],
)
def test_times_are_counted_from_the_request_and_per_token(
    responses: list[tuple[float, int, bool]], ttft: list[float], itl: list[float]
) -> None:
    gauges, clock = RecordedGauges(), Clock()
    note = TokenTimes(gauges, clock).begin()  # type: ignore[arg-type]
    for at_s, num_tokens, is_final in responses:
        clock.now_s = 50.0 + at_s
        note(num_tokens, is_final)
    assert gauges.values[TTFT] == pytest.approx(ttft)
    assert gauges.values[ITL] == pytest.approx(itl)


def test_every_model_publishes_what_its_process_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "INTERVAL_S", 0.01)
    backend = Backend()

    def value(name: str) -> float:
        return backend.values.get((f"draftproof_process_{name}", (("model", "m"),)), 0.0)

    gc.collect()  # what earlier tests left would be freed meanwhile
    with publishing(Gauges(backend, "m")):
        wait_until(lambda: value("resident_memory_bytes") > 20 << 20)
        before, begun_s = value("resident_memory_bytes"), value("cpu_seconds_total")
        kept = bytearray(b"x") * (256 << 20)
        wait_until(lambda: value("resident_memory_bytes") >= before + len(kept) / 2)
        assert begun_s <= time.process_time()
        while time.process_time() < begun_s + 0.5:
            pass
        wait_until(lambda: value("cpu_seconds_total") > begun_s + 0.4)
