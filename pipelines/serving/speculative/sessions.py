"""Keeps what is learned about the acceptance of a session for its next request."""

from __future__ import annotations

from collections import OrderedDict

from pipelines.speculation.draft_length.survival import AcceptanceByMargin, RequestAcceptance

MAX_SESSIONS = 4096


class Sessions:
    """Acceptance rates by session id. Keeps the most recently used sessions.

    Args:
        common: Acceptance rates of the whole server.
    """

    def __init__(self, common: AcceptanceByMargin) -> None:
        self._common = common
        self._known: OrderedDict[str, RequestAcceptance] = OrderedDict()

    def acceptance(self, session_id: str) -> RequestAcceptance:
        """Return the rates of a session; new ones for an unknown session or an empty id."""
        if not session_id:
            return RequestAcceptance(self._common)
        found = self._known.pop(session_id, None) or RequestAcceptance(self._common)
        self._known[session_id] = found
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        return found
