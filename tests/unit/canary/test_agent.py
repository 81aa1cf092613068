"""Tests of agents over HTTP, on rendered repositories."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from build.repository import render_recipe
from pipelines.canary.controller.arm_table import arm_table
from pipelines.canary.controller.candidate import read_pair
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.plan import FLEET, read_plan
from pipelines.canary.controller.rollout import Progress, Rollout
from pipelines.canary.fleet import agent as agents
from pipelines.canary.fleet import members
from pipelines.canary.fleet.agent import Agent
from pipelines.canary.fleet.agent_server import AgentServer
from pipelines.canary.fleet.call import Call, control_of
from pipelines.canary.fleet.fleet import Fleet
from pipelines.canary.fleet.members import addresses_of
from pipelines.canary.fleet.remote_world import RemoteWorld, describe
from pipelines.canary.run_files import arms_file
from pipelines.canary.server_address import ServerAddress
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.place import KEY_FILE
from pipelines.errors import CanaryError, InvalidRequestError, ServerUnavailableError, UnauthorizedError
from pipelines.router.arms import ArmTable, read_table
from tests.unit.canary.requests import LIMITS
from tests.unit.canary.simulated_world import PLAN, begun
from tests.unit.canary.test_preflight import DEMO, run
from tests.unit.canary.test_triton_world import engines, speculative_models, told

__all__ = ["engines", "run", "told"]

KEY = "k" * 32


@dataclass
class StandInServer:
    """The running server of a directory."""

    key: str = "first run"
    ready: bool = True

    def is_ready(self) -> bool:
        return self.ready


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StandInServer:
    running = StandInServer()
    monkeypatch.setattr(agents, "find_server", lambda directory: running)
    monkeypatch.setattr(
        agents.ServerAddress, "of", lambda directory: ServerAddress(Ports.free(), "key"), raising=True
    )
    return running


@contextmanager
def serving(*directories: Path) -> Iterator[list[str]]:
    """Run an agent for each directory; return their addresses."""
    servers = [AgentServer(Agent(each), KEY, ("127.0.0.1", 0)) for each in directories]
    threads = [threading.Thread(target=each.serve_forever) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield [f"http://127.0.0.1:{each.server_port}" for each in servers]
    finally:
        for each in servers:
            each.shutdown()
            each.server_close()
        for thread in threads:
            thread.join()


def rollout_of(run: Path) -> Rollout:
    name = read_pair(run).fingerprint
    return replace(begun(), stable_socket=name, control_socket=control_of(name), recipe_candidate="new")


def call_of(rollout: Rollout, candidate: str = "") -> Call:
    return Call(rollout.stable_socket, candidate, rollout.recipe_candidate, LIMITS)


def table_of(rollout: Rollout, phase: str, candidate: str = "", generation: int = 4) -> ArmTable:
    progress = Progress(Position(phase, 0.0), generation, candidate, control_of(candidate))
    return arm_table(rollout, progress, time.time())


def test_a_candidate_comes_and_stays_by_the_words_of_a_controller_elsewhere(
    run: Path, told: list[str], engines: Callable[..., None], server: StandInServer
) -> None:
    engines(2, 1)
    rollout = rollout_of(run)
    with serving(run) as [address]:
        world = RemoteWorld(address, KEY, call_of(rollout))
        checked = world.preflight()
        assert checked.is_good, checked.reason
        candidate = checked.evidence["socket"]
        assert len(candidate) == 64, "a name that is the same on all servers"
        loaded = world.load()
        assert loaded.evidence["socket"] == candidate
        assert loaded.evidence["same_target"] is True
        pair = read_pair(run, loaded.evidence["models"][-1])
        began_s = time.time()
        world.write(table_of(rollout, "step/1", candidate))
        table = read_table(arms_file(run))
        assert table.candidate is not None and table.control is not None
        sockets = [each.socket for each in (table.stable, table.candidate, table.control)]
        stable = read_pair(run)
        assert sockets == [stable.socket, pair.socket, stable.control_socket]
        assert began_s + PLAN.lease_s - 2 <= table.lease_until_s <= time.time() + PLAN.lease_s
        assert world.observations_end() == 0
        assert world.observations(0) == ([], 0)
        assert world.listener(candidate) is None, "nothing is listening here"
        resumed = RemoteWorld(address, KEY, call_of(rollout, candidate))
        assert resumed.keep().is_good
        resumed.write(table_of(rollout, "settling", candidate, 5))
        assert read_table(arms_file(run)).stable.socket == pair.socket
        assert resumed.settle().is_good
        assert resumed.run() != "", "it still belongs to the rollout"


def test_a_candidate_that_was_rendered_leaves(
    run: Path, told: list[str], engines: Callable[..., None], server: StandInServer
) -> None:
    engines(2, 1)
    rollout = rollout_of(run)
    with serving(run) as [address]:
        world = RemoteWorld(address, KEY, call_of(rollout))
        assert world.unload() == "it was not rendered"
        name = world.preflight().evidence["socket"]
        world.load()
        num_loaded = len(told)
        assert world.unload() == "the candidate is unloaded"
        assert told[num_loaded:] and all(each.startswith("unload") for each in told[num_loaded:])
        assert world.unload() == "the candidate is not there"
        with pytest.raises(CanaryError, match="does not have a pair of the rollout"):
            RemoteWorld(address, KEY, call_of(rollout, name)).keep()


def test_a_candidate_with_another_target_is_refused(
    run: Path, told: list[str], engines: Callable[..., None], server: StandInServer
) -> None:
    engines(2, 3)
    with serving(run) as [address]:
        checked = RemoteWorld(address, KEY, call_of(rollout_of(run))).preflight()
    assert not checked.is_good
    assert "another target than the pair in service" in checked.reason
    assert speculative_models(run) == ["speculative"], "nothing of it stays"


def test_one_controller_at_a_time_and_no_delayed_table(run: Path, server: StandInServer) -> None:
    first = rollout_of(run)
    second = replace(first, canary_id="c2")
    with serving(run) as [address]:
        ours, theirs = (RemoteWorld(address, KEY, call_of(each)) for each in (first, second))
        ours.write(table_of(first, "preflight", generation=4))
        with pytest.raises(CanaryError, match="another controller has this server; rollout c1") as caught:
            theirs.write(table_of(second, "preflight", generation=9))
        assert caught.value.remedy
        with pytest.raises(CanaryError, match="another controller has this server"):
            ours.write(table_of(first, "preflight", generation=3))
        ours.write(replace(table_of(first, "preflight", generation=5), lease_until_s=0.0))
        theirs.write(table_of(second, "preflight", generation=9))
        with pytest.raises(CanaryError, match="another controller has this server; rollout c2"):
            ours.write(table_of(first, "preflight", generation=6))
        theirs.write(table_of(second, "rolled_back", generation=10))
        ours.write(table_of(first, "preflight", generation=6))


def test_a_run_is_of_a_ready_server_with_the_pair_of_the_rollout(run: Path, server: StandInServer) -> None:
    rollout = rollout_of(run)
    with serving(run) as [address]:
        world = RemoteWorld(address, KEY, call_of(rollout))
        first = world.run()
        assert world.run() == first
        server.key = "second run"
        assert world.run() != first
        server.ready = False
        with pytest.raises(ServerUnavailableError, match="the server is not ready"):
            world.run()
        server.ready = True
        other = RemoteWorld(address, KEY, replace(call_of(rollout), stable="f" * 64))
        with pytest.raises(CanaryError, match=r"another pair in service.*demo \(draft .*, target "):
            other.run()


def test_who_has_no_key_gets_nothing(run: Path, server: StandInServer) -> None:
    with serving(run) as [address]:
        with pytest.raises(UnauthorizedError, match="key is missing or wrong"):
            RemoteWorld(address, "wrong", call_of(rollout_of(run))).run()
        assert httpx.get(f"{address}/server", trust_env=False).status_code == 401
        known = {"Authorization": f"Bearer {KEY}"}
        for path, body in (("/rollout/run", b"{}"), ("/rollout/__init__", b"["), ("/elsewhere", b"")):
            reply = httpx.post(f"{address}{path}", content=body, headers=known, trust_env=False)
            assert (reply.status_code, "Traceback" in reply.text) == (400, False)
        with pytest.raises(InvalidRequestError, match="unknown method"):
            Agent(run).carry_out("describe", call_of(rollout_of(run)))


@pytest.mark.parametrize("lost", [ConnectionResetError("reset"), TimeoutError("too slow")])
def test_a_connection_that_an_agent_loses_in_its_work_is_its_answer(
    lost: OSError, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(agent: Agent) -> None:
        raise lost

    monkeypatch.setattr(Agent, "describe", fail)
    with serving(run) as [address], pytest.raises(ServerUnavailableError, match="the agent lost") as caught:
        describe(address, KEY)
    assert str(lost) in caught.value.values
    assert "an agent lost a connection" in caplog.text


def test_a_call_for_another_server_is_not_carried_out(
    run: Path, tmp_path: Path, server: StandInServer
) -> None:
    replaced = Path(shutil.copytree(run, tmp_path / "replaced"))
    with serving(run) as [address]:
        found, call = describe(address, KEY), call_of(rollout_of(run))
        assert found == describe(address, KEY), "the name of a server stays"
        assert found.server.startswith(socket.gethostname()) and found.own == found.fingerprint
        RemoteWorld(address, KEY, replace(call, server=found.server)).run()
    with serving(replaced) as [address]:
        assert describe(address, KEY).server != found.server
        with pytest.raises(ServerUnavailableError, match="another server has this address"):
            RemoteWorld(address, KEY, replace(call, server=found.server)).run()


def test_a_candidate_that_no_pod_could_start_with_is_refused(
    run: Path, told: list[str], engines: Callable[..., None], server: StandInServer
) -> None:
    engines(2, 1)
    with serving(run) as [address]:
        call = replace(call_of(rollout_of(run)), server=describe(address, KEY).server)
        refused = RemoteWorld(address, KEY, call).preflight()
        assert not refused.is_good and "its recipe has another name than the servers': new" in refused.reason
        assert speculative_models(run) == ["speculative"], "nothing of it stays"
        assert RemoteWorld(address, KEY, replace(call, recipe="demo")).preflight().is_good


def test_a_server_of_the_candidates_package_is_settled_without_the_former_pair(
    run: Path, tmp_path: Path, told: list[str], engines: Callable[..., None], server: StandInServer
) -> None:
    """A pod of the next revision: its own pair is the candidate."""
    engines(2, 1)
    rollout = rollout_of(run)
    with serving(run) as [address]:
        candidate = RemoteWorld(address, KEY, call_of(rollout)).preflight().evidence["socket"]
    pair = [tmp_path / name for name in ("draft-2", "target-1")]
    new = render_recipe(DEMO, *pair, tmp_path / "pod").parent
    with serving(new) as [address]:
        found = describe(address, KEY)
        assert found.own == found.fingerprint == candidate
        world = RemoteWorld(address, KEY, replace(call_of(rollout, candidate), server=found.server))
        world.run()
        world.write(table_of(rollout, "settling", candidate, 5))
        assert world.settle().is_good
        assert told == []
    assert read_table(arms_file(new)).stable.socket == read_pair(new).socket


def test_an_agent_finds_a_server_in_another_container_by_its_host(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answer = httpx.Response(200)

    def get(url: str, **options: object) -> httpx.Response:
        asked.append(url)
        return answer

    monkeypatch.setattr(agents.httpx, "get", get)
    agent, call = Agent(run, server_host="127.0.0.1"), call_of(rollout_of(run))
    with pytest.raises(ServerUnavailableError, match="the server is not ready"):
        agent.carry_out("run", call)  # it has not written its key yet
    (run / KEY_FILE).write_text("first run\n")
    first = agent.carry_out("run", call)
    assert asked[-1] == f"http://127.0.0.1:{Ports.from_environment().http}/v2/health/ready"
    (run / KEY_FILE).write_text("second run\n")
    assert agent.carry_out("run", call) != first
    assert agent._address().key == "second run"
    answer = httpx.Response(503)
    with pytest.raises(ServerUnavailableError, match="the server is not ready"):
        agent.carry_out("run", call)


def test_the_agents_of_a_name_are_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        (None, None, None, "", (host, 8004)) for host in ("10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2")
    ]
    monkeypatch.setattr(members.socket, "getaddrinfo", lambda host, port, type: answers)
    assert addresses_of("servers:8004") == [
        *("http://10.0.0.1:8004", "http://10.0.0.2:8004", "http://[fd00::1]:8004")
    ]

    def fail(*given: object, **named: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(members.socket, "getaddrinfo", fail)
    with pytest.raises(CanaryError, match=r"the name of the agents is not found; servers:8004: no answer"):
        Fleet((), KEY, "servers:8004").find_in_service()


def test_no_agent_is_a_server_that_is_away(run: Path) -> None:
    with serving(run) as [address]:
        pass
    with pytest.raises(ServerUnavailableError, match="no agent answers"):
        RemoteWorld(address, KEY, call_of(rollout_of(run))).run()


def test_servers_with_different_pairs_are_refused_with_their_digests(
    run: Path, tmp_path: Path, server: StandInServer
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    path = other / "model_repository" / "speculative" / "pair.json"
    known = read_pair(run).draft_digest
    path.write_text(path.read_text().replace(f'"draft_digest": "{known}"', '"draft_digest": "0badbadbad"'))
    with serving(run, run, other) as addresses:
        assert Fleet(tuple(addresses[:2]), KEY).find_in_service().name == "demo"
        with pytest.raises(CanaryError, match="the servers of the fleet have different pairs") as caught:
            Fleet(tuple(addresses), KEY).find_in_service()
    assert "draft 0badbadbad" in caught.value.values and addresses[2] in caught.value.values
    with pytest.raises(CanaryError, match="a majority of the servers is missing"):
        Fleet((addresses[0], "http://127.0.0.1:9"), KEY).find_in_service()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('agents: []\nkey_file: "k"\n', "agents"),
        ('agents: ["10.0.0.7:8004"]\nkey_file: "k"\n', "http://host:port"),
        ('agents: ["http://a", "http://a"]\nkey_file: "k"\n', "each once"),
        ('servers: ["http://a"]\nkey_file: "k"\n', "unknown key"),
        ('key_file: "k"\n', "listed or have one name"),
        ('agents: ["http://a"]\nagents_name: "a:1"\nkey_file: "k"\n', "listed or have one name"),
        ('agents_name: "servers"\nkey_file: "k"\n', "host:port, whose host is a name of DNS"),
        ('agents_name: "a..b:80"\nkey_file: "k"\n', "'a..b:80'; host:port"),
        ('agents: ["http://a"]\nkey_file: "missing"\n', "key cannot be used"),
        ('agents: ["http://a"]\nkey_file: "short"\n', "5 characters"),
        ('agents: ["http://a"]\nkey_file: "open"\n', "readable by others"),
    ],
)
def test_a_wrong_file_of_a_fleet_is_refused(text: str, match: str, tmp_path: Path) -> None:
    for name, key, mode in (("short", "short", 0o600), ("open", KEY, 0o644)):
        (tmp_path / name).write_text(key)
        (tmp_path / name).chmod(mode)
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(CanaryError, match=match):
        Fleet.read(path)


def test_the_default_plan_of_a_fleet_reaches_all_servers() -> None:
    plan: Any = read_plan(FLEET)
    assert [step.servers for step in plan.steps] == [0, 0, 0, 0.34, 1]
