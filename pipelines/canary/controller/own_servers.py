"""The world of a rollout on one machine: the server in service, and one that is started beside it.

The second server is an ordinary one, with a run directory of its own inside that of the first. The front door
of the first keeps the address that clients know and sends requests to the engines of both. After a promotion
the first server loads the new pair while the second answers all requests (docs/decisions/rollouts.md).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.atomic_file import remove_directory
from pipelines.available_resources import available_bytes
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.world import PhaseResult
from pipelines.canary.judge.resources import Sample, read_taken
from pipelines.canary.run_files import RouterFiles
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, beside, find_server
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import CanaryError
from pipelines.manifest import read_manifest
from pipelines.places import CODE
from pipelines.socket_path import is_listening

_POLL_S = 0.1
_DRAFT_LENGTH = "draft_length.json"
_LOG = "candidate.log"


def served_pair(run_directory: Path) -> PairRecord:
    """Return the pair that a run directory was rendered for.

    Raises:
        CanaryError: There is none, or another version rendered it.
    """
    return PairRecord.read(run_directory / "model_repository" / LOOP, CanaryError)


def render(source: PairSource, run_directory: Path, options: Sequence[str] = ()) -> None:
    """Build a pair if needed, or check its package, and render its repository.

    Args:
        source: The pair.
        run_directory: Run directory of its server.
        options: Further options of ``build.repository``.

    Raises:
        CanaryError: The build failed; the error quotes its message.
    """
    command = [sys.executable, "-m", "build.repository", *source.arguments]
    command += ["--run-directory", str(run_directory), *options]
    done = subprocess.run(command, cwd=CODE, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = said[-1].removeprefix("error: ") if said else f"exit code {done.returncode}"
        raise CanaryError(
            f"the candidate could not be rendered: {why}",
            "correct what is named; the pair in service answers as before",
        )


class OwnServers(RouterFiles):
    """Implements ``World``.

    Args:
        run_directory: Run directory of the server in service.
        rollout: The rollout.
        public_key: Key that must have signed the candidate's package; None to accept any package.
    """

    def __init__(self, run_directory: Path, rollout: Rollout, public_key: Path | None) -> None:
        super().__init__(run_directory)
        self._beside = beside(run_directory)
        self._source = PairSource.of(rollout.recipe_candidate, public_key)
        self._stable_socket = rollout.stable_socket

    def preflight(self) -> PhaseResult:
        """Build and render the candidate, and compare it with the pair in service."""
        if Server.running(self._beside) is None:  # else an earlier controller has started it
            render(self._source, self._beside)
            if (length := self._run / _DRAFT_LENGTH).exists():
                shutil.copyfile(length, self._beside / _DRAFT_LENGTH)
        found = compared(served_pair(self._beside), served_pair(self._run))
        if not found.is_good:
            remove_directory(self._beside)
        return found

    def load(self) -> PhaseResult:
        """Start the second server and wait until it is ready."""
        began_s = time.monotonic()
        server = Server.running(self._beside) or Server.start(self._beside, Ports.free())
        server.wait_ready()
        candidate, stable = served_pair(self._beside), served_pair(self._run)
        evidence = {
            "socket": candidate.socket,
            "same_target": candidate.target_fingerprint == stable.target_fingerprint,
        }
        return PhaseResult(
            True, f"a second server is ready after {time.monotonic() - began_s:.1f} s", evidence
        )

    def settle(self) -> PhaseResult:
        """Let the server in service load the new pair; the second one answers meanwhile."""
        server, before = find_server(self._run), self.listener(self._stable_socket)
        launch, known = Launch.read(self._run), PairSource.promoted(self._run)
        source = replace(
            self._source,
            served_model_name=known.served_model_name if known else served_pair(self._run).name,
            instead_of=known.instead_of if known else launch.package.directory if launch.package else "",
        )
        source.promote(self._run)
        render(source, self._run, ("--replace",))
        server.reload()
        began_s = time.monotonic()
        while self.listener(self._stable_socket) in (None, before) or not server.is_ready():
            if time.monotonic() - began_s > launch.ready_timeout_s:
                raise CanaryError(
                    f"the server in service has not loaded the new pair in {launch.ready_timeout_s:.0f} s",
                    f"fix what {server.log} names; the second server answers meanwhile",
                )
            time.sleep(_POLL_S)
        pair = served_pair(self._run)
        reason = f"{self._run.name} serves {pair.name} from now on"
        return PhaseResult(True, reason, {"socket": pair.socket})

    def unload(self) -> str:
        """End the second server, and remove what it left but its log."""
        if (server := Server.running(self._beside)) is not None:
            server.stop()
        Server.clear(self._beside)
        if (log := self._beside / "server.log").exists():
            log.replace(self._run / _LOG)
        remove_directory(self._beside)
        return f"the second server has ended; {_LOG} is its log"

    def sample(self) -> Sample:
        """Read the metrics of both servers."""
        servers = (find_server(each) for each in (self._beside, self._run))
        urls = (f"http://{HOST}:{server.ports.metrics}/metrics" for server in servers)
        return Sample(time.time(), *map(read_taken, urls))

    def listener(self, socket: str) -> int | None:
        """Connect to the socket, since Triton does not notice a process that was killed.

        Returns:
            Unix time in nanoseconds at which the process made its socket; every process makes a new one.
        """
        path = CODE / socket
        try:
            made_at_ns = path.stat().st_mtime_ns
        except OSError:
            return None
        return made_at_ns if is_listening(path) else None


def compared(candidate: PairRecord, stable: PairRecord) -> PhaseResult:
    """Compare a pair with the one in service: what a start would not show, or only after minutes.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
    """
    pairs = (candidate, stable)
    runtimes = [pair.runtime for pair in pairs]
    if runtimes != ["embedded", "embedded"]:
        remedy = "start its server yourself, and roll out between two servers with 'draftproof upstreams'"
        return _refused("both pairs must run on the embedded runtime", runtimes, remedy)
    if candidate.fingerprint == stable.fingerprint:
        remedy = "name a recipe with other engines or other limits"
        return _refused("it does not differ from the pair in service", candidate.fingerprint, remedy)
    evidence: dict[str, Any] = {}
    manifests = [read_manifest(Path(pair.target_engine_dir)) or {} for pair in pairs]
    for key, what in (("tokenizer_identity_sha256", "another tokenizer"), ("end_ids", "other end tokens")):
        evidence[key] = of_both = [manifest.get(key) for manifest in manifests]
        if of_both[0] is None or of_both[0] != of_both[1]:
            remedy = "build the target from a checkpoint with those of the pair in service"
            return _refused(f"its target has {what}", of_both, remedy)
    if not is_listening(CODE / candidate.socket):  # else an earlier controller has started it
        needed = pair_bytes(candidate.engine_dirs, candidate.num_kv_blocks, candidate.max_batch_size)
        evidence["bytes"] = {"needed": needed, "available": available_bytes()}
        if needed > evidence["bytes"]["available"]:
            remedy = "reduce the kv_cache sizes of the recipes, free memory, or use a larger machine"
            return _refused("there is no memory for a second server", evidence["bytes"], remedy)
    return PhaseResult(True, "its texts have the same tokens, and there is memory for it", evidence)


def _refused(what: str, found: Any, remedy: str) -> PhaseResult:
    return PhaseResult(False, f"refused: {what}; {json.dumps(found)}; {remedy}", {"found": found})
