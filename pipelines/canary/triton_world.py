"""The world of a rollout as it is: one Triton server, its run directory, and the two pairs in it."""

from __future__ import annotations

import json
import os
import socket as sockets
import time
from dataclasses import dataclass
from pathlib import Path

from pipelines.canary.analysis.limits import Limits
from pipelines.canary.candidate import STABLE_MODEL, CandidatePair, Pair, load_at_start, remove, render_beside
from pipelines.canary.cold_start import cold_start
from pipelines.canary.memory import free_bytes
from pipelines.canary.phases import Outcome
from pipelines.canary.preflight import examine
from pipelines.canary.repository_api import RepositoryApi
from pipelines.canary.server_address import ServerAddress
from pipelines.deploy.models import PAIR_FILE
from pipelines.deploy.triton_install import REPOSITORY_ROOT
from pipelines.errors import CanaryError
from pipelines.routing.arms import ArmTable, read_table, write_table
from pipelines.routing.observation import Observation
from pipelines.routing.observation_log import log_end, read_observations

_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Found:
    """What a rollout begins with.

    Attributes:
        stable: The pair in service.
        generation: Of the table of arms.
    """

    stable: Pair
    generation: int


def find(run_directory: Path) -> Found:
    """Who serves now: the pair that was promoted last, else that of the recipe.

    Raises:
        CanaryError: The table of arms cannot be read, or names a pair that is not there.
    """
    path = arms_file(run_directory)
    if not path.is_file():
        return Found(Pair.read(run_directory), 0)
    table = read_table(path)
    return Found(_pair_at(run_directory, table.stable.socket), table.generation)


def arms_file(run_directory: Path) -> Path:
    """What the router follows."""
    return run_directory / "arms.json"


def observations_file(run_directory: Path) -> Path:
    """What the router writes."""
    return run_directory / "observations.jsonl"


class TritonWorld:
    """See ``World``.

    Args:
        run_directory: Of the server.
        address: Of the server.
        stable_socket: Of the pair in service.
        recipe: Of the candidate.
        limits: Of the rollout.
        candidate_socket: Of the candidate that was loaded already; "" for none.
    """

    def __init__(
        self,
        run_directory: Path,
        address: ServerAddress,
        stable_socket: str,
        recipe: str,
        limits: Limits,
        candidate_socket: str = "",
    ) -> None:
        self._run = run_directory
        self._address = address
        self._stable_socket = stable_socket
        self._recipe = recipe
        self._limits = limits
        self._candidate_socket = candidate_socket

    def preflight(self) -> Outcome:
        """Build, measure and render the candidate, then check it."""
        candidate = self._render()
        checks = examine(candidate, lambda: free_bytes(self._address.metrics))
        evidence = {check.name: {"is_met": check.is_met, **check.evidence} for check in checks}
        for check in checks:
            if not check.is_met:
                if not candidate.pair.loads_at_start:
                    remove(self._run, candidate.pair)
                seen = f"{json.dumps(check.evidence)}; {check.limit}; {check.remedy}"
                return Outcome(False, f"refused, not so: {check.name}; {seen}", evidence)
        return Outcome(True, f"{len(checks)} checks pass", {**evidence, "socket": candidate.pair.socket})

    def load(self) -> Outcome:
        """Load its models."""
        candidate = self._candidate()
        pair = candidate.pair
        began_s = time.monotonic()
        with self._api() as api:
            for model in pair.models:
                api.load(model)
        seconds = time.monotonic() - began_s
        evidence = {
            "socket": pair.socket,
            "control_socket": pair.control_socket,
            "same_target": candidate.same_target,
            "models": list(pair.models),
            "seconds": round(seconds, 2),
        }
        return Outcome(True, f"loaded in {seconds:.1f} s", evidence)

    def probe(self) -> Outcome:
        """Look at its acceptance."""
        found = cold_start(self._address.grpc, self._candidate().pair, self._limits)
        return Outcome(found.verdict == "pass", found.reason, found.evidence, found.verdict == "held")

    def unload(self) -> str:
        """Take its models away; the pair in service stays, though it was to be its own candidate."""
        if self._candidate_socket == self._stable_socket:
            return "its pair is the one in service and stays"
        is_gone = self._take_away(self._candidate_socket)
        return "its pair is unloaded" if is_gone else "its pair is the recipe's own and stays for generate"

    def keep(self) -> Outcome:
        """Let servers of this run directory load it at their start."""
        pair = _pair_at(self._run, self._candidate_socket)
        if not pair.loads_at_start:
            load_at_start(self._run, pair, wanted=True)
        return Outcome(True, f"servers load {pair.speculative_model} at their start")

    def settle(self) -> Outcome:
        """Take the pair away that was the stable one."""
        self._take_away(self._stable_socket)
        pair = _pair_at(self._run, self._candidate_socket)
        return Outcome(True, f"router serves {pair.speculative_model} from now on")

    def write(self, table: ArmTable) -> None:
        """Replace the table of arms."""
        write_table(arms_file(self._run), table)

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """Read the router's log."""
        return read_observations(observations_file(self._run), offset)

    def observations_end(self) -> int:
        """See ``World``."""
        return log_end(observations_file(self._run))

    def is_answering(self, socket: str) -> bool:
        """Whether somebody accepts a connection; Triton itself notices no process that was killed."""
        with sockets.socket(sockets.AF_UNIX) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            try:
                connection.connect(os.path.relpath(REPOSITORY_ROOT / socket))  # short: 107 bytes at most
            except OSError:
                return False
        return True

    def _take_away(self, socket: str) -> bool:
        """Unload and remove a pair; one that is gone is no error.

        The recipe's own stays, whatever became of it: ``generate`` and ``generate_unary`` answer from it.

        Returns:
            Whether it is gone.
        """
        pair = _find_pair(self._run, socket)
        if pair is None or pair.speculative_model == STABLE_MODEL:
            return pair is None
        load_at_start(self._run, pair, wanted=False)
        with self._api() as api:
            for model in reversed(pair.models):
                api.unload(model)
        remove(self._run, pair)
        return True

    def _candidate(self) -> CandidatePair:
        if not self._candidate_socket:
            return self._render()
        return self._beside_stable(_pair_at(self._run, self._candidate_socket))

    def _render(self) -> CandidatePair:
        rendered = render_beside(self._recipe, self._run)
        self._candidate_socket = rendered.pair.socket
        return self._beside_stable(rendered.pair)

    def _beside_stable(self, pair: Pair) -> CandidatePair:
        return CandidatePair(pair, _pair_at(self._run, self._stable_socket), self._run)

    def _api(self) -> RepositoryApi:
        return RepositoryApi(self._address.http)


def _pair_at(run_directory: Path, socket: str) -> Pair:
    if (pair := _find_pair(run_directory, socket)) is not None:
        return pair
    raise CanaryError(
        "no pair of the repository answers at a socket of the rollout",
        values=f"socket={socket} in {run_directory}",
        limit="a pair that was rendered there",
        remedy=f"remove {arms_file(run_directory)}: then the recipe's own pair answers everything",
    )


def _find_pair(run_directory: Path, socket: str) -> Pair | None:
    for path in sorted((run_directory / "model_repository").glob(f"{STABLE_MODEL}*/{PAIR_FILE}")):
        pair = Pair.read(run_directory, path.parent.name)
        if pair.socket == socket:
            return pair
    return None
