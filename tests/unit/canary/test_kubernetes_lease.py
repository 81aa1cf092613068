"""Tests of the Lease against a stand-in for the API of Kubernetes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.canary import __main__ as command
from pipelines.canary.fleet.kubernetes_lease import Lease, LeaseApi, LeaseLostError, Times
from pipelines.errors import CanaryError, ServerUnavailableError
from pipelines.program import EXIT_INTERRUPTED
from tests.unit.canary.simulated_fleet import SimulatedFleet
from tests.unit.canary.strict_lease_api import NAME, StrictApi, serving

QUICK = Times(duration_s=4.0, gives_up_after_s=2.5, retry_s=0.2)
_LONGEST_S = 60.0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[StrictApi]:
    with serving(tmp_path) as running:
        yield running
        assert running.refused == []


def lease_of(api: StrictApi, times: Times = QUICK) -> Lease:
    return Lease(LeaseApi(NAME, api.url, api.account), times)


def wait_until(holds: Callable[[], bool]) -> None:
    ends_at_s = time.monotonic() + _LONGEST_S
    while not holds():
        assert time.monotonic() < ends_at_s
        time.sleep(0.02)


def is_lost(lease: Lease) -> bool:
    try:
        lease.check()
    except LeaseLostError:
        return True
    return False


def test_a_lease_is_renewed_and_released(api: StrictApi) -> None:
    for _ in range(2):
        lease = lease_of(api)
        with lease.held(pytest.fail):
            assert api.holder == lease._me
            before = int(api.lease["metadata"]["resourceVersion"])
            wait_until(lambda before=before: int(api.lease["metadata"]["resourceVersion"]) > before + 2)
            lease.check()
        assert api.holder == ""
    assert len(api.holders) == 2
    assert api.lease["spec"]["leaseTransitions"] == 2


def test_two_controllers_never_both_have_it(api: StrictApi) -> None:
    inside: list[str] = []
    both: list[list[str]] = []
    waited: list[str] = []

    def work() -> None:
        lease = lease_of(api, Times(30.0, 20.0, 0.05))
        with lease.held(waited.append):
            inside.append(lease._me)
            for _ in range(10):
                lease.check()
                both.extend([list(inside)] * (len(inside) > 1))
                time.sleep(0.02)
            inside.remove(lease._me)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONGEST_S)
    assert both == []
    assert len(api.holders) == len(set(api.holders)) == 3
    assert set(waited) <= set(api.holders) and waited


def test_the_lease_of_a_controller_that_died_is_taken_over_after_that_has_given_up(api: StrictApi) -> None:
    dead, heir = lease_of(api), lease_of(api)
    context = dead.held(pytest.fail)
    context.__enter__()
    dead._ends.set()  # it renews no more, and releases nothing
    began_s = time.monotonic()
    taken_s: list[float] = []

    def take_over() -> None:
        with heir.held(lambda holder: None):
            taken_s.append(time.monotonic())
            heir.check()

    thread = threading.Thread(target=take_over)
    thread.start()
    wait_until(lambda: is_lost(dead))
    lost_s = time.monotonic()
    assert taken_s == [], "it was lost before anyone could have it"
    thread.join(_LONGEST_S)
    assert taken_s and taken_s[0] - began_s > QUICK.duration_s - QUICK.retry_s - 0.5
    assert lost_s < taken_s[0]
    assert is_lost(dead)
    dead._release()
    assert api.holders == [dead._me, heir._me]


def test_without_the_api_it_is_lost_and_stays_lost(api: StrictApi) -> None:
    lease = lease_of(api)
    with lease.held(pytest.fail):
        api.is_silent = True
        wait_until(lambda: is_lost(lease))
        api.is_silent = False
        time.sleep(3 * QUICK.retry_s)
        assert is_lost(lease), "another one may have had it meanwhile"
    assert api.holder == lease._me, "who has lost it releases nothing"


def test_a_change_by_others_and_a_lost_answer_do_not_end_it(api: StrictApi) -> None:
    lease = lease_of(api, Times(30.0, 20.0, 0.05))
    with lease.held(pytest.fail):
        api.change(leaseTransitions=7)
        before = lease._renewed_at_s
        wait_until(lambda: lease._renewed_at_s > before)

        def lose() -> None:
            api.is_silent, api.after = True, lambda: None

        api.after = lose
        wait_until(lambda: api.is_silent)
        api.is_silent = False
        before = time.monotonic()
        wait_until(lambda: lease._renewed_at_s > before)
        api.give_token("second token")
        before = time.monotonic()
        wait_until(lambda: lease._renewed_at_s > before)
        lease.check()
    assert api.lease["spec"]["leaseTransitions"] == 7


def test_it_is_lost_if_another_holder_is_in_it(api: StrictApi) -> None:
    lease = lease_of(api, Times(30.0, 20.0, 0.05))
    with lease.held(pytest.fail):
        api.change(holderIdentity="other")
        wait_until(lambda: is_lost(lease))
    assert api.holder == "other"


def test_a_holder_with_a_longer_duration_keeps_it(api: StrictApi) -> None:
    """Times are the holder's, and its clock is of no interest."""
    api.change(holderIdentity="other", leaseDurationSeconds=600, renewTime="2001-01-01T00:00:00.000000Z")
    said: list[str] = []
    lease = lease_of(api, Times(0.2, 0.1, 0.05))
    thread = threading.Thread(target=lambda: lease._acquire(said.append), daemon=True)
    thread.start()
    thread.join(2.0)
    assert thread.is_alive() and said == ["other"] and api.holder == "other"
    api.change(holderIdentity=lease._me)
    thread.join(_LONGEST_S)
    assert not thread.is_alive()


def test_who_may_not_is_refused(api: StrictApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CanaryError, match=r"HTTP 403 for GET .*rollout\.yaml"):
        LeaseApi("another", api.url, api.account).read()
    (api.account / "token").write_text("wrong")
    with pytest.raises(CanaryError, match="HTTP 401"), lease_of(api).held(pytest.fail):
        pytest.fail("it has no right")
    (tmp_path / "elsewhere").mkdir()
    with serving(tmp_path / "elsewhere") as other:
        other.url, url = api.url, other.url
        with pytest.raises(ServerUnavailableError, match="certificate"):
            lease_of(other)._api.read()
        other.url = url
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CanaryError, match="leave lease out elsewhere"):
        LeaseApi.of_pod(NAME)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(CanaryError, match="a pod with a service account"):
        LeaseApi.of_pod(NAME)


def test_a_controller_that_lost_it_decides_nothing(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    controller.look()
    before = fleet.store.progress(fleet._rollout), [server.table for server in fleet.servers]

    def lost() -> None:
        raise LeaseLostError("lost")

    controller._check = lost
    with pytest.raises(LeaseLostError):
        controller.look()
    assert before == (fleet.store.progress(fleet._rollout), [server.table for server in fleet.servers])


def test_the_state_follows_one_controller(tmp_path: Path) -> None:
    """If two are there in spite of everything, the later one finds the other's decision."""
    fleet = SimulatedFleet(tmp_path)
    first = fleet.controller()
    first.look()
    other = type(fleet.store)(tmp_path / "fleet.sqlite")
    other.advance(fleet._rollout, other.progress(fleet._rollout))  # nothing has changed
    first.look()
    progress = other.progress(fleet._rollout)
    other.advance(fleet._rollout, progress.__class__(progress.position, progress.generation + 1))
    with pytest.raises(CanaryError, match="another controller has advanced"):
        first.look()


def test_a_lost_lease_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(*given: object) -> None:
        raise LeaseLostError("the Lease was renewed 11.0 s ago")

    monkeypatch.setattr(command, "start_fleet", lose)
    code = command.main(["start", "--fleet", str(tmp_path / "fleet.yaml"), "--candidate", "/packages/new"])
    assert code == EXIT_INTERRUPTED  # the job starts another pod
    assert "renewed 11.0 s ago; the same command resumes" in capsys.readouterr().err
