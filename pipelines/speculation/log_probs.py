"""Computes log probabilities of tokens from raw logits, before any sampling parameter is applied.

They are computed at temperature 1 in float64, one position at a time. So they depend on the position's logits
only and are bitwise equal to those of the target alone. Those of a prompt are computed chunk by chunk, so its
logits are never held as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.token_ids import Logits, TokenIds

MAX_LOG_PROBS = 20
"""Maximum number of alternatives per token; vLLM's default (``max_logprobs``)."""


@dataclass(frozen=True)
class LogProbs:
    """Log probabilities of n consecutive tokens and their m likeliest alternatives.

    Attributes:
        token_log_probs: float32 [n], log probabilities of the tokens.
        top_ids: int32 [n, m], the likeliest tokens of each position in descending order, ties by ascending
            id; may include the token itself.
        top_log_probs: float32 [n, m], log probabilities of ``top_ids``.
    """

    token_log_probs: npt.NDArray[np.float32]
    top_ids: TokenIds
    top_log_probs: npt.NDArray[np.float32]

    @classmethod
    def of(cls, logits: Logits, token_ids: TokenIds, num_alternatives: int) -> LogProbs:
        """Compute the log probabilities of tokens.

        Args:
            logits: float32 [n, vocab_size], raw logits.
            token_ids: int32 [n], the tokens chosen from them.
            num_alternatives: m, at most the size of the vocabulary.
        """
        num_tokens = len(token_ids)
        found = cls(
            np.empty(num_tokens, np.float32),
            np.empty((num_tokens, num_alternatives), np.int32),
            np.empty((num_tokens, num_alternatives), np.float32),
        )
        for index, (row, token_id) in enumerate(zip(logits, token_ids.tolist(), strict=True)):
            shifted = row.astype(np.float64) - float(row.max())
            log_probs = shifted - np.log(np.sum(np.exp(shifted)))
            top_ids = _likeliest(row, num_alternatives)
            found.token_log_probs[index] = log_probs[token_id]
            found.top_ids[index] = top_ids
            found.top_log_probs[index] = log_probs[top_ids]
        return found

    @classmethod
    def concatenate(cls, parts: Sequence[LogProbs]) -> LogProbs:
        """Join consecutive parts; at least one, all with the same number of alternatives."""
        return cls(
            np.concatenate([part.token_log_probs for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top_log_probs for part in parts]),
        )

    def take(self, tokens: slice) -> LogProbs:
        """Return the log probabilities of some of the tokens."""
        return LogProbs(self.token_log_probs[tokens], self.top_ids[tokens], self.top_log_probs[tokens])


def _likeliest(row: Logits, count: int) -> npt.NDArray[np.intp]:
    """Return the ids of the largest logits in descending order, ties by ascending id."""
    if not count:
        return np.empty(0, np.intp)
    least = np.partition(row, len(row) - count)[len(row) - count]
    candidates = np.flatnonzero(row >= least)
    found: npt.NDArray[np.intp] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
    return found
