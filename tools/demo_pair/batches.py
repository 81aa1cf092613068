"""Plan the text of every training step before training begins, given a seed."""

from __future__ import annotations

import math

import numpy as np
import torch

from build.quantization.corpus import DemoPairError
from tools.demo_pair.tokenizer import TokenArray


def _windows(stream: TokenArray, count: int, width: int, random: np.random.Generator) -> TokenArray:
    """Cut windows ``[count, width]``; each pass tiles the stream from another offset and shuffles them."""
    starts: list[TokenArray] = []
    found = 0
    while found < count:
        offset = int(random.integers(0, width))
        tiles = np.arange(offset, len(stream) - width, width, dtype=np.int64)
        starts.append(random.permutation(tiles))
        found += len(tiles)
    chosen = np.concatenate(starts)[:count]
    return stream[chosen[:, None] + np.arange(width)]


def plan(
    sources: list[tuple[TokenArray, float]], steps: int, batch: int, context: int, seed: int
) -> torch.Tensor:
    """Draw the windows of a whole run.

    Args:
        sources: Token streams and their shares of the text, which sum to 1.
        steps: Number of batches.
        batch: Sequences in a batch.
        context: Positions predicted in a sequence.
        seed: Seed of all random choices.

    Returns:
        Token ids, int64 ``[steps, batch, context + 1]``.

    Raises:
        DemoPairError: A stream is too short to cut windows from.
    """
    shortest = min(len(stream) for stream, _ in sources)
    if shortest < 2 * (context + 1):
        raise DemoPairError(
            f"a text of {shortest} tokens is shorter than two windows of {context + 1}",
            "use more text or a shorter context",
        )
    random = np.random.default_rng(seed)
    total = steps * batch
    counts = [math.floor(total * share) for _, share in sources]
    counts[0] += total - sum(counts)
    rows = np.concatenate(
        [
            _windows(stream, count, context + 1, random)
            for (stream, _), count in zip(sources, counts, strict=True)
            if count
        ]
    )
    return torch.from_numpy(random.permutation(rows).reshape(steps, batch, context + 1))


def cosine_rate(step: int, steps: int, warm_up: float = 0.03, floor: float = 0.02) -> float:
    """Return the factor of the learning rate at ``step``: linear warm-up, then cosine decay to ``floor``."""
    ramp = max(1, round(steps * warm_up))
    if step < ramp:
        return (step + 1) / ramp
    progress = (step - ramp) / max(1, steps - ramp)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
