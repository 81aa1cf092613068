"""Keeps what is learned about a session for its next request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from pipelines.speculation.draft_length.survival import AcceptanceByMargin, RequestAcceptance
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

MAX_SESSIONS = 4096
MAX_TOKENS = 4096
"""Most tokens of answers that are kept of a session: 64 MiB of all sessions together."""


class Session:
    """Remembers what the earlier requests of a session tell about its next one.

    Attributes:
        acceptance: Acceptance rates of its text.
        answer_ids: int32 [n], tokens of its latest answers, in which drafts are looked up.

    Args:
        common: Acceptance rates of the whole server.
    """

    def __init__(self, common: AcceptanceByMargin) -> None:
        self.acceptance = RequestAcceptance(common)
        self.answer_ids = NO_TOKENS

    def remember(self, parts: Sequence[TokenIds]) -> None:
        """Add an answer, given in parts int32 [n]."""
        latest = np.concatenate((self.answer_ids, *parts))[-MAX_TOKENS:]
        self.answer_ids = latest.copy()  # a view would keep all of the answer


class Sessions:
    """Sessions by id. Keeps the most recently used ones.

    Args:
        common: Acceptance rates of the whole server.
    """

    def __init__(self, common: AcceptanceByMargin) -> None:
        self._common = common
        self._known: OrderedDict[str, Session] = OrderedDict()

    def of(self, session_id: str) -> Session:
        """Return a session; a new one for an unknown or empty id."""
        if not session_id:
            return Session(self._common)
        found = self._known.pop(session_id, None) or Session(self._common)
        self._known[session_id] = found
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        return found
