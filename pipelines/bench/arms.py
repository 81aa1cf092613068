"""The arms that a benchmark compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """A model with its draft length.

    Attributes:
        model: Model, ``generate_target`` or ``generate``.
        num_draft_tokens: Draft tokens per round; None for the target alone, or to let the server choose.
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
    """Return the arms: target alone, each fixed draft length, and adaptive draft length."""
    return (TARGET_ALONE, *(Arm("generate", length) for length in draft_lengths), ADAPTIVE)
