"""Log probabilities of emitted tokens: those of the model, before any sampling parameter acts.

Computed from the raw logits at temperature 1, in float64, one position at a time, so they depend on
the position's logits alone and are bit for bit those of the target alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.token_ids import Logits, TokenIds

MAX_LOG_PROBS = 20
"""Alternatives per token that a request may ask for; vLLM's default limit (``max_logprobs``)."""


@dataclass(frozen=True)
class LogProbs:
    """Natural logarithms of probabilities of n consecutive tokens and their m likeliest alternatives.

    Attributes:
        token_log_probs: float32 [n], of the tokens themselves.
        top_ids: int32 [n, m], the likeliest tokens of each position, the likeliest first, of equally
            likely ones the lower id first; the token itself may be among them.
        top_log_probs: float32 [n, m], theirs.
    """

    token_log_probs: npt.NDArray[np.float32]
    top_ids: TokenIds
    top_log_probs: npt.NDArray[np.float32]

    @classmethod
    def of(cls, logits: Logits, token_ids: TokenIds, num_alternatives: int) -> LogProbs:
        """Those of ``token_ids``.

        Args:
            logits: float32 [n, vocab_size], raw.
            token_ids: int32 [n], chosen from them.
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
            top_ids = np.argsort(-row, kind="stable")[:num_alternatives]
            found.token_log_probs[index] = log_probs[token_id]
            found.top_ids[index] = top_ids
            found.top_log_probs[index] = log_probs[top_ids]
        return found

    @classmethod
    def concatenate(cls, parts: Sequence[LogProbs]) -> LogProbs:
        """Those of consecutive stretches; at least one part, all with as many alternatives."""
        return cls(
            np.concatenate([part.token_log_probs for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top_log_probs for part in parts]),
        )

    def take(self, tokens: slice) -> LogProbs:
        """Those of some of the tokens."""
        return LogProbs(self.token_log_probs[tokens], self.top_ids[tokens], self.top_log_probs[tokens])
