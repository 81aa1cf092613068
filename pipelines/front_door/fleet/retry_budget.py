"""Limits how many requests are sent to a second server because the queue of the first was full.

Without a limit, a fleet whose queues are full would be asked by each request as often as it has servers.
"""

from __future__ import annotations

_SHARE = 0.2
_MOST = 10.0


class RetryBudget:
    """A credit that grows with each request, by ``_SHARE`` of a retry, up to ``_MOST``."""

    def __init__(self) -> None:
        self._credit = _MOST

    def note_request(self) -> None:
        """Add the share of one request."""
        self._credit = min(self._credit + _SHARE, _MOST)

    def take(self) -> bool:
        """Spend one retry; False if there is none left."""
        if self._credit < 1:
            return False
        self._credit -= 1
        return True
