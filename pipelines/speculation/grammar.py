"""Defines what sampling and the loop ask of a grammar; implemented by ``text.grammar``.

A grammar is a function of the output tokens so far, so it limits drafts, verified tokens and plain decoding
in the same way, and the output with a draft stays that of the target alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipelines.speculation.token_ids import TokenIds


class GrammarState(Protocol):
    """The place in a grammar after some output."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end of the output may follow."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocab_size]; the end of the output is not among them."""

    @property
    def may_end(self) -> bool:
        """Whether the output may end here."""

    def look_ahead(self, draft_ids: TokenIds, limit_s: float) -> int:
        """Compute what ``allowed`` will return here and after each of these tokens, int32 [k].

        Runs on another thread while the engine computes the logits of these tokens.

        Args:
            draft_ids: int32 [k].
            limit_s: Time for what follows the next token, in seconds.

        Returns:
            The number of leading tokens for which the time was enough.
        """

    def push(self, token_id: int) -> None:
        """Add one output token, which is not an end token."""


class Grammar(Protocol):
    """The grammar of one request."""

    def after(self, output_ids: TokenIds) -> GrammarState:
        """Return the state after an output, int32 [n].

        Raises:
            InvalidRequestError: The output does not follow the grammar.
        """

    def forced_after(self, output_ids: TokenIds) -> TokenIds:
        """Return the tokens that must follow an output, int32 [n]; empty if there is a choice."""
