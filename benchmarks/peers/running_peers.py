"""Install peers, each in a virtual environment of its own, and run their programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.measuring import PeerRunner, Runner
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import Arm, Peer, arms_of
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.protocol import Loaded
from pipelines.errors import DraftproofError, PeerError
from pipelines.manifest import sha256_file

_ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = _ROOT / ".venv-peers"
REQUIREMENTS = _ROOT / "requirements"

_INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:")
_LAST_LINES = 5  # lines of a failed installation that an error quotes


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if line.strip() and not line.startswith("WARNING")]
        last = " | ".join(telling[-_LAST_LINES:])
        raise PeerError(
            f"{' '.join(command[1:])} exited with code {done.returncode}: {last}",
            f"read {log}; it needs Linux on x86-64, and a package index with the pinned versions",
        )


def ensure_environment(
    name: str,
    environments: Path = ENVIRONMENTS,
    requirements: Path = REQUIREMENTS,
    run: Callable[[Sequence[str], Path], None] = _run,
) -> Path:
    """Create an environment, unless it exists with the same requirements.

    Args:
        name: Its name; ``peers-<name>.txt`` has its requirements.
        environments: Folder of all environments.
        requirements: Folder with the files of requirements.
        run: Run a command with its output appended to a log; raises ``PeerError``.

    Returns:
        Path of its interpreter.

    Raises:
        PeerError: The installation failed.
    """
    folder = environments / name
    interpreter = folder / "bin" / "python"
    pinned = requirements / f"peers-{name}.txt"
    identity = sha256_file(pinned)
    stamp = folder / "installed.sha256"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == identity:
        return interpreter
    environments.mkdir(parents=True, exist_ok=True)
    log = environments / f"{name}.log"
    log.write_text("", encoding="utf-8")
    run([sys.executable, "-m", "venv", "--clear", str(folder)], log)
    run([str(interpreter), *_INSTALL, "--no-deps", "--require-hashes", "-r", str(pinned)], log)
    stamp.write_text(identity, encoding="utf-8")
    return interpreter


@dataclass
class RunningPeers:
    """Running programs of peers.

    Attributes:
        runners: Runners of the arms that are ready.
        loaded: Response of each peer to loading.
        failures: Name of a peer or arm that cannot be measured -> reason.
    """

    runners: dict[Arm, Runner] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@contextmanager
def running_peers(
    peers: Sequence[Peer],
    models: PeerModels,
    max_concurrency: int,
    timeout_s: float,
    report: Callable[[str], None],
    install: Callable[[Peer], Path] = lambda peer: ensure_environment(peer.environment),
) -> Iterator[RunningPeers]:
    """Install and start peers, one program per arm; failures are recorded.

    Args:
        peers: Peers to start.
        models: Models for the peers.
        max_concurrency: Most concurrent requests.
        timeout_s: Time limit for one response of a program, also for loading.
        report: Called with one line per stage.
        install: Install a peer and return its interpreter; raises PeerError.
    """
    running = RunningPeers()
    with ExitStack() as stack:
        for peer in peers:
            report(f"{peer.name}: installing, unless that is done")
            try:
                interpreter = install(peer)
            except DraftproofError as error:
                running.failures[peer.name] = str(error)
                continue
            for arm in arms_of(peer):
                report(f"{arm}: loading")
                try:
                    process = stack.enter_context(closing(_start(peer, arm, interpreter, models, timeout_s)))
                    request = models.load_request(peer, arm, max_concurrency)
                    running.loaded[peer.name] = process.load(request)
                except DraftproofError as error:
                    running.failures[str(arm)] = str(error)
                    continue
                running.runners[arm] = PeerRunner(process, models.end_ids)
        yield running


def _start(peer: Peer, arm: Arm, interpreter: Path, models: PeerModels, timeout_s: float) -> PeerProcess:
    environment = {"OMP_NUM_THREADS": str(models.content["num_threads"]), "PYTHONUNBUFFERED": "1"}
    log = models.folder / "logs" / f"{str(arm).replace(' ', '-')}.log"
    command = [str(interpreter), "-m", peer.module]
    return PeerProcess(str(arm), command, log, environment, timeout_s)
