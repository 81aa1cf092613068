"""Keeps a session's answers for its next request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

MAX_SESSIONS = 4096
MAX_TOKENS = 4096
"""Most tokens of answers that are kept of a session: 64 MiB of all sessions together."""


class Session:
    """Remembers the answers of a session.

    Attributes:
        answer_ids: int32 [n], tokens of its latest answers, in which drafts are looked up.
    """

    def __init__(self) -> None:
        self.answer_ids = NO_TOKENS

    def remember(self, parts: Sequence[TokenIds]) -> None:
        """Add an answer, given in parts int32 [n]."""
        latest = np.concatenate((self.answer_ids, *parts))[-MAX_TOKENS:]
        self.answer_ids = latest.copy()  # a view would keep all of the answer


class Sessions:
    """Sessions by id. Keeps the most recently used ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Session] = OrderedDict()

    def of(self, session_id: str) -> Session:
        """Return a session; a new one for an unknown or empty id."""
        if not session_id:
            return Session()
        found = self._known.pop(session_id, None) or Session()
        self._known[session_id] = found
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        return found
