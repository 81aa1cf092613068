"""Compares what two engines predict: probabilities of the same tokens, and where their greedy texts part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.quality.engines import Logits, log_softmax
from pipelines.bench.blocks import Interval

NUM_GREEDY = 64

_POSITIONS_AT_ONCE = 64  # whose logits are turned into float64 together

Model = Callable[[list[int], int], Logits]
"""Computes the logits of tokens after so many tokens before them, [tokens, vocab]."""


@dataclass(frozen=True)
class Beside:
    """The predictions of an engine beside those of a reference.

    Attributes:
        perplexity_ratio: Its perplexity divided by the reference's, with an interval over positions.
        same_argmax: Share of positions with the same most likely token.
        kl: Mean over positions of KL(reference || engine), nats.
    """

    perplexity_ratio: Interval
    same_argmax: float
    kl: float


def surprises(logits: Logits, ids: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return -log p of each token of a text after the first; the logits are those of its tokens."""
    parts = [
        -log_softmax(logits[rows])[np.arange(rows.stop - rows.start), ids[rows.start + 1 : rows.stop + 1]]
        for rows in _blocks(len(ids) - 1)
    ]
    return np.concatenate(parts)


def beside(reference: Sequence[Logits], found: Sequence[Logits], texts: Sequence[list[int]]) -> Beside:
    """Compare the logits of texts with those of a reference, each [tokens, vocab].

    A vocabulary may have padding, so the tokens that both have are compared.
    """
    width = min(reference[0].shape[1], found[0].shape[1])
    more, same, kl = [], [], []
    for first, second, ids in zip(reference, found, texts, strict=True):
        for rows in _blocks(len(ids) - 1):
            p, q = (log_softmax(logits[rows, :width]) for logits in (first, second))
            more.append((p - q)[np.arange(len(p)), ids[rows.start + 1 : rows.stop + 1]])
            same.append(p.argmax(axis=1) == q.argmax(axis=1))
            kl.append((np.exp(p) * (p - q)).sum(axis=1))
    differences = np.concatenate(more)
    error = 1.96 * differences.std() / np.sqrt(len(differences))
    low, ratio, high = np.exp(differences.mean() + error * np.array([-1, 0, 1])).tolist()
    return Beside(Interval(ratio, low, high), *(float(np.concatenate(each).mean()) for each in (same, kl)))


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _POSITIONS_AT_ONCE):
        yield slice(start, min(start + _POSITIONS_AT_ONCE, count))


@dataclass(frozen=True)
class Greedy:
    """Greedy text.

    Attributes:
        ids: Its tokens.
        gaps: The top-2 gap at each: how far apart the two greatest logits are.
    """

    ids: list[int]
    gaps: list[float]

    @classmethod
    def of(cls, model: Model, prompt: list[int]) -> Greedy:
        """Continue a prompt by ``NUM_GREEDY`` tokens, whatever they are."""
        greedy, logits = cls([], []), model(prompt, 0)[-1]
        while True:
            second, first = np.partition(logits, -2)[-2:].tolist()
            greedy.ids.append(int(logits.argmax()))
            greedy.gaps.append(first - second)
            if len(greedy.ids) == NUM_GREEDY:
                return greedy
            logits = model(greedy.ids[-1:], len(prompt) + len(greedy.ids) - 1)[-1]

    def first_difference(self, reference: Greedy) -> dict[str, float] | None:
        """Return how many tokens two texts share, and both top-2 gaps behind them; None if they are equal."""
        for position, (one, other) in enumerate(zip(self.ids, reference.ids, strict=True)):
            if one != other:
                gaps = {"gap": self.gaps[position], "reference_gap": reference.gaps[position]}
                return {"position": position, **gaps}
        return None
