"""Engines that ours is compared with, and the arms of the comparison."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "draftproof"


@dataclass(frozen=True)
class Peer:
    """An engine that ours is compared with.

    Attributes:
        name: Short name.
        title: Full name.
        environment: Name in ``.venv-peers/<environment>/`` and ``requirements/peers-<environment>.txt``.
        module: Module of its program.
        form: Format of weights that it reads (``benchmarks/peer_models/``).
        draft_lengths: Fixed draft lengths to measure.
    """

    name: str
    title: str
    environment: str
    module: str
    form: str
    draft_lengths: tuple[int, ...]


PEERS = (
    Peer(
        "genai",
        "OpenVINO GenAI, ContinuousBatchingPipeline",
        "genai",
        "benchmarks.peers.programs.openvino_genai",
        "openvino",
        (2, 4, 6, 8),
    ),
    Peer(
        "llama-cpp",
        "llama.cpp, its server",
        "llama-cpp",
        "benchmarks.peers.programs.llama_cpp",
        "gguf",
        (2, 4),
    ),
)


@dataclass(frozen=True)
class Arm:
    """An engine with one setting of speculation.

    Attributes:
        engine: ``draftproof`` or the name of a peer.
        num_draft_tokens: 0 for the target alone; None if the engine chooses, as only ours does.
    """

    engine: str
    num_draft_tokens: int | None

    @property
    def alone(self) -> Arm:
        """Return the arm of the same engine's target alone."""
        return Arm(self.engine, 0)

    def __str__(self) -> str:
        if self.num_draft_tokens == 0:
            return f"{self.engine} target alone"
        length = "adaptive" if self.num_draft_tokens is None else f"K={self.num_draft_tokens}"
        return f"{self.engine} {length}"


OURS_ADAPTIVE = Arm(OURS, None)


def arms_of(peer: Peer) -> tuple[Arm, ...]:
    """Return the arms of a peer: its target alone, and each draft length."""
    return (Arm(peer.name, 0), *(Arm(peer.name, length) for length in peer.draft_lengths))
