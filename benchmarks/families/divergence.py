"""Measure how far the logits of a quantized network are from those of its float32 network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.families.engines import Logits, TokenIds


@dataclass(frozen=True)
class Divergence:
    """A quantized network beside its float32 one, over the same text.

    Attributes:
        kl: Mean over positions of KL(float32 || quantized), nats.
        same_argmax: Share of positions with the same most likely token.
        lost_nats: Mean over the text's tokens of their log likelihood, float32 minus quantized; its
            exponential is the ratio of the perplexities.
    """

    kl: float
    same_argmax: float
    lost_nats: float

    @classmethod
    def measure(cls, reference: Logits, logits: Logits, ids: TokenIds) -> Divergence:
        """Compare two networks over a text.

        Args:
            reference: Logits of the float32 network, [tokens, vocab].
            logits: Those of the quantized one.
            ids: The text, [tokens].
        """
        p, q = _log_softmax(reference), _log_softmax(logits)
        before = np.arange(len(ids) - 1)
        lost = p[before, ids[1:]] - q[before, ids[1:]]
        return cls(
            kl=_mean_kl(p, q),
            same_argmax=float((reference.argmax(axis=1) == logits.argmax(axis=1)).mean()),
            lost_nats=float(lost.mean()),
        )


def mean_kl(reference: Logits, logits: Logits) -> float:
    """Return the mean over positions of KL(reference || logits), nats."""
    return _mean_kl(_log_softmax(reference), _log_softmax(logits))


def _mean_kl(p: Any, q: Any) -> float:
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def _log_softmax(logits: Logits) -> Any:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
