"""Probes of pairs that were just loaded beside another one: a good draft, and one that knows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from build.beside import render_beside
from pipelines.acceptance_baseline import AcceptanceBaseline
from pipelines.calibration.__main__ import main as calibrate
from pipelines.canary.candidate import CandidatePair
from pipelines.canary.cold_start import cold_start
from pipelines.canary.memory import free_bytes, memory_of
from pipelines.canary.preflight import examine, require
from pipelines.canary.repository_api import RepositoryApi
from pipelines.deploy import Ports, Server
from tests.integration.conftest import tiny_recipe
from tests.integration.test_side_by_side import processes
from tests.tiny_engines import build_tiny_pair
from tests.unit.canary_requests import LIMITS

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def server(render: Callable[[str, str], Path]) -> Iterator[Server]:
    with Server.start(render("tiny-cold", "in_process"), Ports.free()) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def free(server: Server) -> Callable[[], int]:
    return lambda: free_bytes(f"http://127.0.0.1:{server.ports.metrics}/metrics")


@pytest.fixture
def load(server: Server, free: Callable[[], int], tmp_path: Path) -> Iterator[Callable[[str], CandidatePair]]:
    """Build, measure, render and load a pair with this kind of draft."""
    with RepositoryApi(f"http://127.0.0.1:{server.ports.http}") as api:
        loaded = []

        def make(draft: str) -> CandidatePair:
            engines = build_tiny_pair(tmp_path / draft, draft=draft, noise=0.03)  # the one in service: 0.04
            record = render_beside(tiny_recipe("tiny-new", "in_process"), *engines, server.directory)
            arguments = ["--draft", engines[0], "--target", engines[1], "--output", record.calibration_file]
            assert calibrate(list(map(str, arguments))) == 0
            candidate = CandidatePair.read(server.directory, record.speculative_model)
            require(examine(candidate, free))
            api.load(record.speculative_model)
            loaded.append(record.speculative_model)
            return candidate

        yield make
        for model in loaded:
            api.unload(model)


@pytest.mark.parametrize(("protocol", "draft"), [("grpc", "self"), ("http", "noisy"), ("grpc", "noisy")])
def test_a_good_pair_gives_the_very_counts_of_its_baseline(
    server: Server, load: Callable[[str], CandidatePair], protocol: str, draft: str
) -> None:
    """Served one by one beside another pair, measured all at once in another process."""
    pair = load(draft).pair
    found = cold_start(f"{protocol}://127.0.0.1:{getattr(server.ports, protocol)}", pair, LIMITS)
    assert found.verdict == "pass"
    baseline = AcceptanceBaseline.read(Path(pair.calibration_file))
    assert baseline is not None
    probe = found.probe
    assert probe.num_prompts == len(baseline.prompts)
    assert (probe.num_rounds, probe.total_draft_tokens) == (baseline.num_rounds, baseline.total_draft_tokens)
    assert probe.accepted_per_position[: baseline.num_draft_tokens] == baseline.accepted_per_position


@pytest.mark.parametrize(("gain", "verdict"), [(1.03, "pass"), (1.1, "held"), (1.25, "fail")])
def test_a_pair_that_accepts_less_than_at_its_build_is_held_or_leaves(
    server: Server, load: Callable[[str], CandidatePair], gain: float, verdict: str
) -> None:
    """Told the other way round: the measurement is made better than what the engines give."""
    pair = load("noisy").pair
    baseline = AcceptanceBaseline.read(Path(pair.calibration_file))
    assert baseline is not None
    better = tuple(int(gain * accepted) for accepted in baseline.accepted_per_position)
    replace(baseline, accepted_per_position=better).add_to(Path(pair.calibration_file))
    found = cold_start(f"grpc://127.0.0.1:{server.ports.grpc}", pair, LIMITS)
    assert found.verdict == verdict, found.reason
    assert ("at the build" in found.reason) == (verdict != "pass")


def test_a_draft_that_knows_nothing_of_the_target_fails_at_once(
    server: Server, load: Callable[[str], CandidatePair]
) -> None:
    found = cold_start(f"grpc://127.0.0.1:{server.ports.grpc}", load("random").pair, LIMITS)
    assert "near 1" in found.reason


def test_a_pair_that_is_not_loaded_does_not_answer(
    server: Server, load: Callable[[str], CandidatePair]
) -> None:
    candidate = load("self")
    with RepositoryApi(f"http://127.0.0.1:{server.ports.http}") as api:
        api.unload(candidate.pair.speculative_model)
    found = cold_start(f"grpc://127.0.0.1:{server.ports.grpc}", candidate.pair, LIMITS)
    assert "does not answer" in found.reason


def test_the_memory_that_is_asked_for_is_about_what_is_taken(
    server: Server, load: Callable[[str], CandidatePair], free: Callable[[], int]
) -> None:
    candidate = load("self")
    [process] = processes(server, candidate.pair.speculative_model)
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line
    )
    resident = int(fields["VmRSS"].split()[0]) * 1024
    [memory] = memory_of(candidate.pair, [candidate.stable], free)
    assert 0.5 * memory.needed < resident < 1.2 * memory.needed
