"""Starts the programs of all peers and keeps them until the comparison is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.errors import DraftproofError
from pipelines.peers.environment import ensure_environment
from pipelines.peers.models import PeerModels
from pipelines.peers.orders import Loaded
from pipelines.peers.peers import Arm, Peer, arms_of
from pipelines.peers.process import PeerProcess
from pipelines.peers.runners import PeerRunner, Runner


@dataclass
class RunningPeers:
    """What came of starting them.

    Attributes:
        runners: Of each arm that is ready.
        loaded: What each peer said of itself.
        failures: Reason by name of a peer or arm that cannot be measured.
    """

    runners: dict[Arm, Runner] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@contextmanager
def running_peers(
    peers: Sequence[Peer],
    models: PeerModels,
    max_num_at_once: int,
    timeout_s: float,
    report: Callable[[str], None],
    install: Callable[[Peer], Path] = ensure_environment,
) -> Iterator[RunningPeers]:
    """Install and start peers, one program per arm; what fails is left out and its reason kept.

    Args:
        peers: Which.
        models: Their weights.
        max_num_at_once: Most requests at once.
        timeout_s: Longest wait for one answer of a program, loading included.
        report: Gets a line per stage.
        install: Gives a peer's interpreter; raises PeerError.
    """
    running = RunningPeers()
    with ExitStack() as stack:
        for peer in peers:
            report(f"{peer.name}: installing, unless it is there")
            try:
                interpreter = install(peer)
            except DraftproofError as error:
                running.failures[peer.name] = str(error)
                continue
            for arm in arms_of(peer):
                report(f"{arm}: loading")
                try:
                    process = stack.enter_context(_start(peer, arm, interpreter, models, timeout_s))
                    order = models.load_order(peer, arm, min(max_num_at_once, peer.most_at_once or 2**31))
                    running.loaded[peer.name] = process.load(order)
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
