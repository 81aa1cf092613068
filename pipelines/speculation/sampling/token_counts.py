"""Counts tokens of prompt and output for the penalties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.speculation.token_ids import TokenIds


class TokenCounts:
    """Counts the tokens of one sequence.

    Attributes:
        in_sequence: bool [vocab_size], True for tokens of prompt or output.
        in_output: int64 [vocab_size], occurrences of each token in the output.

    Args:
        prompt_ids: int32 [n], the prompt.
        output_ids: int32 [m], earlier output that is continued.
        vocab_size: Logits per position.
    """

    def __init__(self, prompt_ids: TokenIds, output_ids: TokenIds, vocab_size: int) -> None:
        self.in_output: npt.NDArray[np.int64] = np.bincount(output_ids, minlength=vocab_size)
        self.in_sequence: npt.NDArray[np.bool_] = self.in_output > 0
        self.in_sequence[prompt_ids] = True

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        self.in_output[token_id] += 1
        self.in_sequence[token_id] = True
