"""Tests of the cold-start probes of a newly loaded pair: a good draft, and one that knows nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from build.rendering.rendered_pair import calibration_file
from build.rendering.second_pair import render_second_pair
from pipelines.bench.calibration.__main__ import main as calibrate
from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline
from pipelines.canary.checks.cold_start import ColdStart, cold_start
from pipelines.canary.checks.preflight import examine
from pipelines.canary.checks.server_figures import free_bytes
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.deploy.server import Server
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.engine_memory import pair_bytes
from tests.integration.conftest import repository_api, tiny_recipe
from tests.integration.test_two_pairs import processes
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair
from tests.unit.canary.requests import LIMITS

pytestmark = pytest.mark.triton


def probe(server: Server, pair: PairRecord) -> ColdStart:
    with repository_api(server) as api:
        return cold_start(api, pair, LIMITS)


@pytest.fixture(scope="module")
def server(render: Callable[..., Path]) -> Iterator[Server]:
    with ready_server(render("tiny-cold", "router")) as running:
        yield running


@pytest.fixture(scope="module")
def free(server: Server) -> Callable[[], int]:
    return lambda: free_bytes(f"http://127.0.0.1:{server.ports.metrics}/metrics")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build and measure a pair with the given kind of draft; return its folder."""

    @cache
    def build(draft: str) -> Path:
        folder = tmp_path_factory.mktemp("pair")
        # the pair in service uses 0.04
        engines = build_tiny_pair(folder, draft=draft, noise=0.03, num_threads=1)
        arguments = ["--draft", engines[0], "--target", engines[1], "--output", calibration_file(*engines)]
        assert calibrate(list(map(str, arguments))) == 0
        return folder

    return build


@pytest.fixture
def load(
    server: Server, free: Callable[[], int], measured: Callable[[str], Path], tmp_path: Path
) -> Iterator[Callable[[str], CandidatePair]]:
    """Render and load a copy of a measured pair, whose measurements a test may change."""
    with repository_api(server) as api:
        loaded = []

        def make(draft: str) -> CandidatePair:
            copy = shutil.copytree(measured(draft), tmp_path / draft)
            record = render_second_pair(
                tiny_recipe("tiny-new"), copy / "draft", copy / "target", server.directory
            )
            candidate = CandidatePair.read(server.directory, record.speculative_model)
            assert all(check.is_met for check in examine(candidate, free))
            api.load(record.speculative_model)
            loaded.append(record.speculative_model)
            return candidate

        yield make
        for model in loaded:
            api.unload(model)


@pytest.mark.parametrize("draft", [pytest.param("self", marks=pytest.mark.long), "noisy"])
def test_a_good_pair_gives_the_very_counts_of_its_baseline(
    server: Server, load: Callable[[str], CandidatePair], draft: str
) -> None:
    """The baseline ran concurrently in another process; here the pair gets one request at a time."""
    pair = load(draft).pair
    found = probe(server, pair)
    assert found.verdict == "pass"
    baseline = AcceptanceBaseline.read(Path(pair.calibration_file))
    counts = found.probe
    assert counts is not None
    assert counts.prompts == baseline.prompts
    assert (counts.num_rounds, counts.total_draft_tokens) == (
        baseline.num_rounds,
        baseline.total_draft_tokens,
    )
    assert counts.accepted_per_position[: baseline.num_draft_tokens] == baseline.accepted_per_position


@pytest.mark.long  # by day tests/unit/canary/test_cold_start.py has pairs that accept less
@pytest.mark.parametrize(("gain", "verdict"), [(1.03, "pass"), (1.1, "held"), (1.25, "fail")])
def test_a_pair_that_accepts_less_than_at_its_build_needs_review_or_fails(
    server: Server, load: Callable[[str], CandidatePair], gain: float, verdict: str
) -> None:
    """Done in reverse: the recorded measurement is raised above what the engines achieve."""
    pair = load("noisy").pair
    baseline = AcceptanceBaseline.read(Path(pair.calibration_file))
    better = tuple(int(gain * accepted) for accepted in baseline.accepted_per_position)
    replace(baseline, accepted_per_position=better).add_to(Path(pair.calibration_file))
    found = probe(server, pair)
    assert found.verdict == verdict, found.reason
    assert ("at the build" in found.reason) == (verdict != "pass")


@pytest.mark.long  # which measures one more pair
def test_a_draft_that_knows_nothing_of_the_target_fails_at_once(
    server: Server, load: Callable[[str], CandidatePair]
) -> None:
    found = probe(server, load("random").pair)
    assert "the mean acceptance length is 1.0" in found.reason


def test_an_unloaded_pair_does_not_answer(server: Server, load: Callable[[str], CandidatePair]) -> None:
    candidate = load("noisy")
    with repository_api(server) as api:
        api.unload(candidate.pair.speculative_model)
    found = probe(server, candidate.pair)
    assert "does not answer" in found.reason


def test_the_memory_that_is_asked_for_is_about_what_is_taken(
    server: Server, load: Callable[[str], CandidatePair]
) -> None:
    candidate = load("noisy")
    [process] = processes(server, candidate.pair.speculative_model)
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line
    )
    resident = int(fields["VmRSS"].split()[0]) * 1024
    pair = candidate.pair
    engines = Path(pair.draft_engine_dir), Path(pair.target_engine_dir)
    needed = pair_bytes(*engines, pair.num_kv_blocks, pair.max_batch_size)
    assert 0.5 * needed < resident < 1.2 * needed
