"""The real world of a rollout: one Triton server, its run directory, and the two pairs in it."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pipelines.canary.checks.preflight import examine
from pipelines.canary.checks.server_figures import free_bytes, read_sample
from pipelines.canary.controller.candidate import (
    CandidatePair,
    load_at_start,
    read_pair,
    remove,
    render_beside,
)
from pipelines.canary.controller.repository_api import RepositoryApi
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.world import Outcome
from pipelines.canary.judge.resources import Sample
from pipelines.canary.run_files import RouterFiles, arms_file
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import find_server
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.pair_record import LOOP, PAIR_FILE, PairRecord
from pipelines.deploy.triton.place import read_key
from pipelines.errors import CanaryError, ServerUnavailableError
from pipelines.router.arms import read_table
from pipelines.socket_path import is_listening

_POLL_S = 0.5


def find_in_service(run_directory: Path) -> tuple[PairRecord, int]:
    """Find the pair in service: the one that was promoted last, else the recipe's own.

    Returns:
        The pair, and the generation of the table of arms.

    Raises:
        CanaryError: The table of arms cannot be read, or names a pair that does not exist.
    """
    path = arms_file(run_directory)
    if not path.is_file():
        return read_pair(run_directory), 0
    table = read_table(path)
    return _pair_at(run_directory, table.stable.socket), table.generation


@dataclass(frozen=True)
class ServerAddress:
    """Addresses and key of one server.

    Attributes:
        ports: Port numbers.
        key: Key of the server for its model repository and internal models.
        host: Host name or IPv4 address.
    """

    ports: Ports
    key: str
    host: str = HOST

    @classmethod
    def of(cls, run_directory: Path, host: str = "") -> ServerAddress:
        """Find the server of a run directory.

        Args:
            run_directory: Run directory of the server.
            host: Host of a server in a container, whose processes are not visible here; its ports come from
                the environment. Such a server may still be loading, because its container starts together
                with the controller's, so this waits for it. "" for the server started on this machine.

        Raises:
            RequestTimeoutError: The server did not answer in time.
            ServerUnavailableError: No server answers.
        """
        if not host:
            server = find_server(run_directory)
            return cls(server.ports, server.key)
        ends_at_s = time.monotonic() + Launch.read(run_directory).ready_timeout_s
        while True:
            # its key changes at each start
            address = cls(Ports.from_environment(), read_key(run_directory), host)
            try:
                with closing(RepositoryApi(address.http, address.key)) as api:
                    api.index()
                return address
            except ServerUnavailableError:
                if time.monotonic() > ends_at_s:
                    raise
                time.sleep(_POLL_S)

    @property
    def http(self) -> str:
        """Address of the repository API."""
        return f"http://{self.host}:{self.ports.http}"

    @property
    def metrics(self) -> str:
        """Address of the metrics."""
        return f"http://{self.host}:{self.ports.metrics}/metrics"


class TritonWorld(RouterFiles):
    """Implements ``World`` for a server of this machine or in a container.

    Args:
        run_directory: Run directory of the server.
        address: Address of the server.
        public_key: Key that must have signed a package; None to accept any package.
        rollout: Rollout between two pairs of that server.
        candidate_socket: Socket of the candidate if it was loaded already, else "".
    """

    def __init__(
        self,
        run_directory: Path,
        address: ServerAddress,
        public_key: Path | None,
        rollout: Rollout,
        candidate_socket: str = "",
    ) -> None:
        super().__init__(run_directory)
        self._address = address
        self._public_key = public_key
        self._rollout = rollout
        self._stable_socket = rollout.stable_socket
        self._candidate_socket = candidate_socket

    def preflight(self) -> Outcome:
        """Build, measure, render and check the candidate."""
        candidate = self._render()
        checks = examine(candidate, lambda: free_bytes(self._address.metrics))
        evidence = {check.name: {"is_met": check.is_met, **check.evidence} for check in checks}
        for check in checks:
            if not check.is_met:
                if not candidate.pair.loads_at_start:
                    remove(self._run, candidate.pair)
                seen = f"{json.dumps(check.evidence)}; {check.limit}; {check.remedy}"
                return Outcome(False, f"refused, check failed: {check.name}; {seen}", evidence)
        return Outcome(True, f"{len(checks)} checks pass", {**evidence, "socket": candidate.pair.socket})

    def load(self) -> Outcome:
        """Load the candidate."""
        candidate = self._candidate()
        pair = candidate.pair
        began_s = time.monotonic()
        with closing(self._api()) as api:
            api.load(pair.speculative_model)
        seconds = time.monotonic() - began_s
        evidence = {
            "socket": pair.socket,
            "control_socket": pair.control_socket,
            "same_target": candidate.same_target,
            "model": pair.speculative_model,
            "seconds": round(seconds, 2),
        }
        return Outcome(True, f"loaded in {seconds:.1f} s", evidence)

    def probe(self) -> Outcome:
        """Ask nothing: the first replays judge the candidate."""
        return Outcome(True, "replays will judge it before any request of a client")

    def unload(self) -> str:
        """Unload the candidate's models, unless the candidate is the pair in service itself."""
        if self._candidate_socket == self._stable_socket:
            return "the candidate is the pair in service and stays loaded"
        is_gone = self._unload_pair(self._candidate_socket)
        return "the candidate is unloaded" if is_gone else "the recipe's own pair stays for the ensemble"

    def keep(self) -> Outcome:
        """Make servers of this run directory load the candidate at their start."""
        pair = _pair_at(self._run, self._candidate_socket)
        if not pair.loads_at_start:
            load_at_start(self._run, pair, wanted=True)
        return Outcome(True, f"servers will load {pair.speculative_model} at their start")

    def settle(self) -> Outcome:
        """Unload the former stable pair."""
        self._unload_pair(self._stable_socket)
        pair = _pair_at(self._run, self._candidate_socket)
        return Outcome(True, f"the router serves {pair.speculative_model} from now on")

    def sample(self) -> Sample:
        """Read the metrics port."""
        candidate, stable = (
            _pair_at(self._run, socket) for socket in (self._candidate_socket, self._stable_socket)
        )
        return read_sample(self._address.metrics, candidate, stable, time.time())

    def listener(self, socket: str) -> int | None:
        """Connect to the socket, since Triton does not notice a process that was killed.

        Returns:
            Unix time in nanoseconds at which the process made its socket; every process makes a new one.
        """
        path = REPOSITORY_ROOT / socket
        try:
            made_at_ns = path.stat().st_mtime_ns
        except OSError:
            return None
        return made_at_ns if is_listening(path) else None

    def _unload_pair(self, socket: str) -> bool:
        """Unload and remove a pair if it exists.

        The recipe's own pair always stays, because the ensemble answers from it.

        Returns:
            Whether the pair no longer exists.
        """
        pair = _find_pair(self._run, socket)
        if pair is None or pair.speculative_model == LOOP:
            return pair is None
        load_at_start(self._run, pair, wanted=False)
        with closing(self._api()) as api:
            api.unload(pair.speculative_model)
        remove(self._run, pair)
        return True

    def _candidate(self) -> CandidatePair:
        if not self._candidate_socket:
            return self._render()
        return self._beside_stable(_pair_at(self._run, self._candidate_socket))

    def _render(self) -> CandidatePair:
        free = free_bytes(self._address.metrics)
        rendered = render_beside(self._rollout.recipe_candidate, self._run, free, self._public_key)
        self._candidate_socket = rendered.pair.socket
        return self._beside_stable(rendered.pair)

    def _beside_stable(self, pair: PairRecord) -> CandidatePair:
        return CandidatePair(pair, _pair_at(self._run, self._stable_socket))

    def _api(self) -> RepositoryApi:
        return RepositoryApi(self._address.http, self._address.key)


def _pair_at(run_directory: Path, socket: str) -> PairRecord:
    if (pair := _find_pair(run_directory, socket)) is not None:
        return pair
    raise CanaryError(
        "no pair of the repository has the socket of the rollout",
        values=f"socket={socket} in {run_directory}",
        limit="a pair that was rendered there",
        remedy=f"remove {arms_file(run_directory)}; the recipe's own pair then answers all requests",
    )


def _find_pair(run_directory: Path, socket: str) -> PairRecord | None:
    for path in sorted((run_directory / "model_repository").glob(f"{LOOP}*/{PAIR_FILE}")):
        pair = read_pair(run_directory, path.parent.name)
        if pair.socket == socket:
            return pair
    return None
