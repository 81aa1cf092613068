"""The engines that ours is compared with, and the arms that come of them."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "draftproof"


@dataclass(frozen=True)
class Peer:
    """Another engine.

    Attributes:
        name: In tables, and of its environment below ``.venv-peers/`` and ``requirements/peers-*.txt``.
        title: For people.
        module: Its program.
        forms: Forms of the weights that it reads (``build/peers/``), the best first.
        draft_lengths: Fixed draft lengths that are tried.
        needs_torch: Whether ``requirements/torch.txt`` belongs to its environment.
        most_at_once: Requests at once that its speculation can take; None for any number.
        preloaded: Library of its environment that its makers want loaded first; "" for none.
    """

    name: str
    title: str
    module: str
    forms: tuple[str, ...]
    draft_lengths: tuple[int, ...]
    needs_torch: bool
    most_at_once: int | None = None
    preloaded: str = ""


PEERS = (
    Peer(
        "genai",
        "OpenVINO GenAI, ContinuousBatchingPipeline",
        "pipelines.peers.programs.openvino_genai",
        ("openvino",),
        (2, 4, 6, 8),
        needs_torch=False,
    ),
    Peer(
        "hf",
        "Hugging Face transformers, generate",
        "pipelines.peers.programs.hugging_face",
        ("hugging_face",),
        (4,),
        needs_torch=True,
        most_at_once=1,
    ),
    Peer(
        "vllm",
        "vLLM on CPUs, method draft_model",
        "pipelines.peers.programs.vllm_cpu",
        ("compressed_tensors", "hugging_face"),
        (4,),
        needs_torch=True,
        preloaded="lib/libiomp5.so",
    ),
)


@dataclass(frozen=True)
class Arm:
    """One engine, asked in one way.

    Attributes:
        engine: ``draftproof`` or the name of a peer.
        num_draft_tokens: 0 for the target alone; None if the engine chooses, as only ours does.
    """

    engine: str
    num_draft_tokens: int | None

    @property
    def alone(self) -> Arm:
        """The same engine's target alone."""
        return Arm(self.engine, 0)

    def __str__(self) -> str:
        if self.num_draft_tokens == 0:
            return f"{self.engine} target alone"
        length = "adaptive" if self.num_draft_tokens is None else f"K={self.num_draft_tokens}"
        return f"{self.engine} {length}"


OURS_ALONE = Arm(OURS, 0)
OURS_ADAPTIVE = Arm(OURS, None)


def arms_of(peer: Peer) -> tuple[Arm, ...]:
    """Its target alone, then each draft length."""
    return (Arm(peer.name, 0), *(Arm(peer.name, length) for length in peer.draft_lengths))
