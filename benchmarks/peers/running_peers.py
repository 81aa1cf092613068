"""Start the programs of all peers, and stop them at the end of the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.environment import ensure_environment
from benchmarks.peers.messages import Loaded
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import Arm, Peer, arms_of
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.runners import PeerRunner, Runner
from pipelines.errors import DraftproofError


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
    install: Callable[[Peer], Path] = lambda peer: ensure_environment(
        peer.environment, needs_torch=peer.needs_torch
    ),
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
                    process = stack.enter_context(_start(peer, arm, interpreter, models, timeout_s))
                    request = models.load_request(
                        peer, arm, min(max_concurrency, peer.max_concurrency or 2**31)
                    )
                    running.loaded[peer.name] = process.load(request)
                except DraftproofError as error:
                    running.failures[str(arm)] = str(error)
                    continue
                running.runners[arm] = PeerRunner(process, models.end_ids)
        yield running


def _start(peer: Peer, arm: Arm, interpreter: Path, models: PeerModels, timeout_s: float) -> PeerProcess:
    environment = {"OMP_NUM_THREADS": str(models.content["num_threads"]), "PYTHONUNBUFFERED": "1"}
    preloaded = interpreter.parents[1] / peer.preloaded
    if peer.preloaded and preloaded.is_file():
        environment["LD_PRELOAD"] = str(preloaded)
    log = models.folder / "logs" / f"{str(arm).replace(' ', '-')}.log"
    command = [str(interpreter), "-m", peer.module]
    return PeerProcess(str(arm), command, log, environment, timeout_s)
