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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.atomic_file import remove_directory
from pipelines.available_resources import available_bytes
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.world import Outcome
from pipelines.canary.judge.resources import Sample
from pipelines.canary.process_figures import read_taken
from pipelines.canary.run_files import RouterFiles
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, beside, find_server
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import CanaryError
from pipelines.manifest import read_manifest
from pipelines.socket_path import is_listening

_POLL_S = 0.1
_DRAFT_LENGTH = "draft_length.json"


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
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CanaryError(
            "the candidate could not be rendered",
            values=said[-1].removeprefix("error: ") if said else f"exit code {done.returncode}",
            limit="a package, or a recipe that can be built here",
            remedy="correct what is named; the pair in service answers as before",
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

    def preflight(self) -> Outcome:
        """Build and render the candidate, and compare it with the pair in service."""
        if Server.running(self._beside) is None:  # else an earlier controller has started it
            render(self._source, self._beside)
            if (length := self._run / _DRAFT_LENGTH).exists():
                shutil.copyfile(length, self._beside / _DRAFT_LENGTH)
        checks = examine(served_pair(self._beside), served_pair(self._run))
        evidence = {check.name: {"is_met": check.is_met, **check.evidence} for check in checks}
        for check in checks:
            if not check.is_met:
                remove_directory(self._beside)
                seen = f"{json.dumps(check.evidence)}; {check.remedy}"
                return Outcome(False, f"refused, check failed: {check.name}; {seen}", evidence)
        return Outcome(True, f"{len(checks)} checks pass", evidence)

    def load(self) -> Outcome:
        """Start the second server and wait until it is ready."""
        began_s = time.monotonic()
        server = Server.running(self._beside) or Server.start(self._beside, Ports.free())
        server.wait_ready()
        candidate, stable = served_pair(self._beside), served_pair(self._run)
        evidence = {
            "socket": candidate.socket,
            "control_socket": candidate.control_socket,
            "same_target": candidate.target_fingerprint == stable.target_fingerprint,
        }
        return Outcome(True, f"a second server is ready after {time.monotonic() - began_s:.1f} s", evidence)

    def settle(self) -> Outcome:
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
                    "the server in service has not loaded the new pair",
                    values=f"{launch.ready_timeout_s:.0f} s, log {server.log}",
                    limit="the second server answers until it has",
                    remedy="fix what the log names",
                )
            time.sleep(_POLL_S)
        pair = served_pair(self._run)
        evidence = {"socket": pair.socket, "control_socket": pair.control_socket}
        return Outcome(True, f"{self._run.name} serves {pair.name} from now on", evidence)

    def unload(self) -> str:
        """End the second server, and remove what it left."""
        if (server := Server.running(self._beside)) is not None:
            server.stop()
        Server.clear(self._beside)
        remove_directory(self._beside)
        return "the second server has ended"

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
        path = REPOSITORY_ROOT / socket
        try:
            made_at_ns = path.stat().st_mtime_ns
        except OSError:
            return None
        return made_at_ns if is_listening(path) else None


@dataclass(frozen=True)
class Check:
    """Result of one check of a candidate that is not loaded yet.

    Attributes:
        name: Requirement in a few words.
        is_met: Whether the candidate meets it.
        evidence: Figures behind the result, ready for JSON.
        remedy: What to do if the candidate does not meet it.
    """

    name: str
    is_met: bool
    evidence: dict[str, Any]
    remedy: str


def examine(candidate: PairRecord, stable: PairRecord) -> tuple[Check, ...]:
    """Check what a start would not, or only after minutes.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
    """
    targets = {"candidate": candidate, "stable": stable}
    manifests = {name: read_manifest(Path(pair.target_engine_dir)) or {} for name, pair in targets.items()}
    tokenizers = {name: each.get("tokenizer_identity_sha256") for name, each in manifests.items()}
    ends = {name: each.get("end_ids") for name, each in manifests.items()}
    runtimes = {name: pair.runtime for name, pair in targets.items()}
    is_embedded = set(runtimes.values()) == {"embedded"}
    memory = _memory_of(candidate) if is_embedded else {"needed": 0, "available": 0}
    return (
        Check(
            "both pairs run on the embedded runtime",
            is_embedded,
            runtimes,
            "start its server yourself, and roll out between two servers with 'draftproof upstreams'",
        ),
        Check(
            "it differs from the pair in service",
            candidate.fingerprint != stable.fingerprint,
            {name: pair.fingerprint for name, pair in targets.items()},
            "name a recipe with other engines or other limits",
        ),
        Check(
            "it has the tokenizer of the pair in service",
            _are_equal(tokenizers),
            {"tokenizer_identity_sha256": tokenizers},
            "build the pair from checkpoints with that tokenizer",
        ),
        Check(
            "its texts end at the same tokens",
            _are_equal(ends),
            ends,
            "build the target from a checkpoint with the same end tokens",
        ),
        Check(
            "there is memory for a second server",
            memory["needed"] <= memory["available"],
            memory,
            "reduce the kv_cache sizes of the recipes, free memory, or use a larger machine",
        ),
    )


def _are_equal(found: dict[str, Any]) -> bool:
    return found["candidate"] is not None and found["candidate"] == found["stable"]


def _memory_of(candidate: PairRecord) -> dict[str, int]:
    if is_listening(REPOSITORY_ROOT / candidate.socket):  # it was started by an earlier controller
        return {"needed": 0, "available": 0}
    engines = Path(candidate.draft_engine_dir), Path(candidate.target_engine_dir)
    needed = pair_bytes(*engines, candidate.num_kv_blocks, candidate.max_batch_size)
    return {"needed": needed, "available": available_bytes()}
