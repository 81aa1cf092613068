"""Tests of whole rollouts on a real server while clients stream from ``router``: none of them notices."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from build.rendering import second_pair
from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.plan import Shadow, Step
from pipelines.canary.judge.limits import Limit
from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.canary.run_files import arms_file
from pipelines.canary.start import start
from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError
from pipelines.router.arms import read_table
from tests.drills.setting import ONE_BAND
from tests.integration.conftest import grpc_client, repository_api, tiny_recipe, wait_until
from tests.integration.test_two_pairs import other_draft, processes
from tests.support.ready_server import ready_server
from tests.unit.canary.simulated_world import EASY_LIMITS, PLAN

__all__ = ["other_draft"]

pytestmark = pytest.mark.triton

REQUESTS = [  # many, because tokens are judged per prompt
    CompletionRequest(f"def f{number}():\n", max_tokens=12, end_id=-1, temperature=0.9 * (number % 2), seed=7)
    for number in range(40)
]
ANY = Limit(5.0, 5.0)  # tiny engines on a shared machine: their speed does not matter here
LIMITS = replace(
    EASY_LIMITS,
    min_requests=20,
    answers=Limit(0.2, 0.1),
    errors=Limit(0.3, 0.1),
    timeouts=Limit(0.3, 0.1),
    goodput=Limit(0.9, 0.9),
    acceptance_rate=Limit(0.3, 0.3),
    acceptance_length=Limit(0.3, 0.3),
    ttft=ANY,
    itl=ANY,
    e2e_tail=Limit(0.9, 0.9),
    pauses=Limit(0.9, 0.9),
    resources_s=3.0,
    memory=ANY,
    cpu_per_token=ANY,
    speed_up=dict.fromkeys(EASY_LIMITS.speed_up, ANY),
)
QUICK = replace(
    PLAN,
    limits="limits.yaml",
    slo_ttft_s=0.2,  # latencies are judged as shares of these: tiny ones take hundreds of pairs to compare
    slo_itl_s=0.02,
    bands=ONE_BAND,  # a busy machine has others now and then, of which too little is ever known
    shadow=Shadow(1.0, 50.0, 2, 16, min_pairs=20, bake_s=1.0),
    steps=(Step(0.3, 20, 1.0),),
    max_pairs=2000,
    down_after_s=1.0,
    drain_s=10.0,
    watch_s=2.0,
    lease_s=5.0,
    tick_s=0.5,
)


@dataclass
class Traffic:
    """The results of the router's clients and of a deployment's probes."""

    num_answers: int = 0
    wrong: list[Any] = field(default_factory=list)


@contextmanager
def traffic(server: Server) -> Iterator[Traffic]:
    with grpc_client(server) as client:
        expected = [client.generate(request, "generate_target").output_ids for request in REQUESTS]
    seen, stop = Traffic(), threading.Event()

    def ask() -> None:
        with grpc_client(server) as client:
            while not stop.is_set():
                for request, right in zip(REQUESTS, expected, strict=True):
                    if stop.is_set():
                        return
                    try:
                        answer: Any = client.stream(request, "router").result().output_ids
                    except DraftproofError as error:
                        answer = error
                    seen.num_answers += 1
                    if answer != right:
                        seen.wrong.append(answer)

    def probe() -> None:
        """Probe readiness: a pod stays ready while pairs come and go."""
        with httpx.Client(base_url=f"http://127.0.0.1:{server.ports.http}", trust_env=False) as http:
            while not stop.wait(0.2):
                if http.get("/v2/models/router/ready").status_code != httpx.codes.OK:
                    seen.wrong.append("router is not ready")

    threads = [threading.Thread(target=target) for target in (ask, ask, ask, probe)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def server(render: Callable[..., Path]) -> Iterator[Server]:
    with ready_server(render("tiny-rollout", "router")) as running:
        yield running


@pytest.fixture
def roll_out(
    server: Server, other_draft: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Cycle], None]], RolloutRecord]:
    def render(recipe: str, run: Path, free: int, public_key: None) -> CandidatePair:
        record = second_pair.render_second_pair(tiny_recipe(recipe), *other_draft, run)
        return CandidatePair.read(run, record.speculative_model)

    monkeypatch.setattr(triton_world, "render_beside", render)
    plan = tmp_path / "canary.yaml"
    document = asdict(QUICK)
    plan.write_text(yaml.safe_dump({**document, "steps": list(document["steps"])}))
    plan.with_name("limits.yaml").write_text(yaml.safe_dump(asdict(LIMITS)))

    def act(show: Callable[[Cycle], None]) -> RolloutRecord:
        return start(server.directory, "tiny-new", plan, show)

    return act


def test_a_good_pair_takes_over_and_every_answer_stays_the_targets_own(
    server: Server, roll_out: Callable[..., RolloutRecord]
) -> None:
    before = len(processes(server, "speculative"))
    with traffic(server) as seen:
        record = roll_out(lambda cycle: None)
        num_answers = seen.num_answers
        assert wait_until(lambda: seen.num_answers > num_answers + len(REQUESTS))
    phases = [(each.to_phase, each.reason) for each in record.transitions]
    assert [phase for phase, _ in phases][-3:] == ["promoting", "settling", "promoted"], phases
    assert judgement(record).verdict == "pass"
    assert num_answers > 100
    assert seen.wrong == []
    replays = [each for each in record.requests if each.is_replay]
    assert {each.answer for each in replays if not each.failure} == {"equal"}
    table = read_table(arms_file(server.directory))
    assert "speculative_" in table.stable.socket
    assert len(processes(server, "speculative")) == before


def test_a_pair_whose_process_is_killed_leaves_and_nobody_notices(
    server: Server, roll_out: Callable[..., RolloutRecord]
) -> None:
    killed: list[int] = []

    def kill(cycle: Cycle) -> None:
        if cycle.position.phase == "step/1" and not killed:
            [folder] = (server.directory / "model_repository").glob("speculative_*")
            killed.extend(processes(server, folder.name))
            for process in killed:
                os.kill(process, signal.SIGKILL)

    with traffic(server) as seen:
        record = roll_out(kill)
        num_answers = seen.num_answers
        assert wait_until(lambda: seen.num_answers > num_answers + len(REQUESTS))
    if "boost::interprocess::lock_exception" in server.log.read_text():
        pytest.skip("Triton 2.51 aborts when a process dies that holds a lock of their shared memory")
    assert killed
    assert record.phase == "rolled_back"
    assert judgement(record).verdict == "fail"
    assert seen.wrong == []
    assert read_table(arms_file(server.directory)).candidate is None
    assert list((server.directory / "model_repository").glob("speculative_*")) == []
    with repository_api(server) as api:
        assert not any(each.state == "READY" for each in api.index() if each.name.startswith("speculative_"))
