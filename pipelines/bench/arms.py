"""The ways of asking that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """One way of asking.

    Attributes:
        model: ``generate_target`` or ``generate``.
        num_draft_tokens: Draft tokens per round; None for the target alone, and for ``generate`` to
            leave the draft length to the server.
    """

    model: str
    num_draft_tokens: int | None = None

    def __str__(self) -> str:
        if self.model == TARGET_ALONE.model:
            return "target alone"
        return "adaptive" if self.num_draft_tokens is None else f"K={self.num_draft_tokens}"


TARGET_ALONE = Arm("generate_target")
ADAPTIVE = Arm("generate")


def arms_with(draft_lengths: Sequence[int]) -> tuple[Arm, ...]:
    """The target alone, each fixed draft length, and the server's own choice."""
    return (TARGET_ALONE, *(Arm("generate", length) for length in draft_lengths), ADAPTIVE)
