"""What one conversation taught about its text, kept for its next request."""

from __future__ import annotations

from collections import OrderedDict

from pipelines.speculation.survival import AcceptanceByMargin, RequestAcceptance

MAX_SESSIONS = 4096


class Sessions:
    """Acceptance by session id; the sessions that were used last are kept.

    Args:
        common: Of the server.
    """

    def __init__(self, common: AcceptanceByMargin) -> None:
        self._common = common
        self._known: OrderedDict[str, RequestAcceptance] = OrderedDict()

    def acceptance(self, session_id: str) -> RequestAcceptance:
        """The record of a session; a new one for one that is not known, or for the empty id."""
        if not session_id:
            return RequestAcceptance(self._common)
        found = self._known.pop(session_id, None) or RequestAcceptance(self._common)
        self._known[session_id] = found
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        return found
