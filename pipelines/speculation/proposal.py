"""Defines the draft tokens of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import TokenIds


@dataclass(frozen=True)
class Proposal:
    """The draft tokens of a round.

    Attributes:
        token_ids: int32 [n], tokens to verify: forced ones, then those of the draft model or looked-up ones.
        drafted: Output of the draft model; None if it was not called or failed.
        num_forced: Number of leading tokens that the grammar forces.
        num_predicted: Number of last tokens that stand in the client's prediction.
    """

    token_ids: TokenIds
    drafted: Output | None
    num_forced: int = 0
    num_predicted: int = 0

    @property
    def num_by_model(self) -> int:
        """Number of tokens from the draft model."""
        if self.drafted is None:
            return 0
        return min(len(self.drafted.token_ids), len(self.token_ids) - self.num_forced)

    def behind(self, forced: TokenIds, max_draft_len: int) -> Proposal:
        """Return the draft model's tokens behind forced ones, int32 [n], at most ``max_draft_len`` in all.

        Looked-up tokens are left out: they would follow the known tokens.
        """
        if not len(forced):
            return self
        num_kept = min(self.num_by_model, max_draft_len - len(forced))
        token_ids = np.concatenate((forced, self.token_ids[:num_kept]))
        return Proposal(token_ids, self.drafted, len(forced))
