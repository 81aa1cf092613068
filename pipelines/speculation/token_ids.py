"""Defines types for arrays of tokens and logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
"""int32 [n]."""

Logits = npt.NDArray[np.float32]
"""float32 [vocab_size] or [n, vocab_size], raw logits of an engine."""

Scores = npt.NDArray[np.float64]
"""float64 [vocab_size]: processed logits; -inf where a token cannot be chosen."""

NO_TOKENS: TokenIds = np.empty(0, dtype=np.int32)
NO_TOKENS.setflags(write=False)
