"""Tests of a rollout through real servers with an agent beside each, while clients ask all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.repository import render_recipe
from pipelines.canary.controller.plan import Step
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.triton_world import arms_file
from pipelines.canary.fleet.fleet_file import fleet_state_file
from pipelines.canary.report.record import judgement
from pipelines.client import Client
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.errors import DraftproofError
from pipelines.router.arms import read_table
from tests.integration.conftest import TIMEOUTS, keep_models, tiny_recipe, wait_until
from tests.integration.test_canary_rollout import LIMITS, QUICK, REQUESTS
from tests.support.tiny_engines import build_tiny_pair

pytestmark = [pytest.mark.triton, pytest.mark.long]

KEY = "0123456789abcdef" * 2
PLAN = replace(
    QUICK,
    steps=(Step(0.3, 20, 1.0), Step(0.3, 20, 1.0, 1.0)),
    idle_s=600.0,
    lease_s=10.0,
    down_after_s=5.0,
)
KILLED_IN = ("preflight", "loading", "cold_start", "shadow", "step/1", "step/2", "promoting", "settling")


@dataclass
class Member:
    """A server, its agent, and its clients' results."""

    directory: Path
    ports: Ports
    server: Server
    agent: subprocess.Popen[str]
    address: str
    num_answers: int = 0
    num_restarts: int = 0
    is_restarting: bool = False
    wrong: list[Any] = field(default_factory=list)

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.is_restarting, self.num_restarts = True, self.num_restarts + 1
        os.kill(self.server.process.pid, signal.SIGKILL)
        wait_until(lambda: not self.server.process.is_alive)
        self.server.stop(kill_after_s=0)
        self.server = Server.start(self.directory, self.ports)
        self.server.wait_ready(300)
        self.is_restarting = False


@dataclass
class Place:
    """A fleet with its file, and the candidate's engines."""

    folder: Path
    members: list[Member]
    engines: tuple[Path, Path]

    @property
    def file(self) -> Path:
        return self.folder / "fleet.yaml"

    def controller(self) -> subprocess.Popen[str]:
        """Start a controller, which prints each phase that it enters."""
        command = [sys.executable, "-m", "tests.support.fleet_controller", str(self.file)]
        return subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    draft, target = build_tiny_pair(tmp_path / "engines", draft="noisy", num_threads=1)
    other = build_tiny_pair(tmp_path / "other", draft="self", num_threads=1)
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    with ExitStack() as stack:
        members = []
        for number in range(2):
            repository = render_recipe(tiny_recipe("tiny"), draft, target, tmp_path / f"server{number}")
            keep_models(repository, "speculative", "target", "generate", "generate_target", "router")
            ports = Ports.free()
            server = Server.start(repository.parent, ports)
            member = Member(
                repository.parent, ports, server, *_agent(stack, repository.parent, other, tmp_path)
            )
            stack.callback(lambda each=member: each.server.stop(kill_after_s=0))
            members.append(member)
        for member in members:
            member.server.wait_ready(300)
        fleet = {"agents": [each.address for each in members], "key_file": "key"}
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        plan = {**asdict(PLAN), "steps": list(map(asdict, PLAN.steps))}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
        (tmp_path / PLAN.limits).write_text(yaml.safe_dump(asdict(LIMITS)))
        yield Place(tmp_path, members, other)


def _agent(
    stack: ExitStack, directory: Path, engines: tuple[Path, Path], folder: Path
) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "tests.support.fleet_agent", str(directory), *map(str, engines)]
    process = subprocess.Popen(
        [*command, str(folder / "key")], cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True
    )
    stack.enter_context(process)  # waits for it, and closes the pipe
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.fixture
def asked(place: Place) -> Iterator[None]:
    """Ask all servers all the time; each answer must be the target's own."""
    stop = threading.Event()
    with Client.connect(f"grpc://{HOST}:{place.members[0].ports.grpc}", TIMEOUTS) as client:
        expected = [client.generate(request, "generate_target").output_ids for request in REQUESTS]

    def ask(member: Member) -> None:
        with Client.connect(f"grpc://{HOST}:{member.ports.grpc}", TIMEOUTS) as client:
            while not stop.is_set():
                for request, right in zip(REQUESTS, expected, strict=True):
                    if stop.is_set():
                        return
                    num_restarts = member.num_restarts
                    try:
                        answer: Any = client.stream(request, "router").result().output_ids
                    except DraftproofError as error:
                        if member.is_restarting or num_restarts != member.num_restarts:
                            stop.wait(0.5)
                            continue  # a front door would ask another server
                        answer = error
                    member.num_answers += 1
                    if answer != right:
                        member.wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(each,)) for each in place.members for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def test_a_candidate_goes_through_real_servers_while_controllers_and_a_server_are_killed(
    place: Place, asked: None
) -> None:
    """A server restarts when it has the candidate; each controller is killed in the next phase."""
    killed: list[str] = []
    has_restarted = False
    while True:
        with place.controller() as controller:
            assert controller.stdout is not None
            for line in controller.stdout:
                phase = line.strip()
                if phase == "promoting" and not has_restarted:
                    has_restarted = True
                    place.members[1].restart()
                if phase in KILLED_IN and phase not in killed:
                    killed.append(phase)
                    controller.kill()
                    break
        if controller.returncode != -signal.SIGKILL:
            break
    store = Store.existing(fleet_state_file(place.file))
    record = store.record()
    store.close()
    assert record.phase == "promoted", record.transitions[-2:]
    assert judgement(record).verdict == "pass"
    assert set(killed) == set(KILLED_IN)
    for member in place.members:
        table = read_table(arms_file(member.directory))
        assert table.candidate is None and "speculative_" in table.stable.socket
        assert member.num_answers > 20
        assert member.wrong == []
    by_candidate = {each.server for each in record.requests if each.arm == "candidate"}
    assert by_candidate == {member.address for member in place.members}
