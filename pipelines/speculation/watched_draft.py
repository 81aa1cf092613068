"""A draft that may fail: requests go on without it, and come back to it when it answers again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pipelines.errors import DraftproofError, EngineFailedError, RequestTimeoutError
from pipelines.speculation.loop import EngineCall
from pipelines.speculation.request import GenerationRequest, Output

_LOG = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0


class WatchedDraft:
    """Passes requests on to a draft, and pauses when it fails.

    After a failure every call is refused at once for a second, then one is tried; each further failure
    doubles the pause, up to a minute. The log says once that the draft is gone, and once that it is back.

    Attributes:
        num_failures: Calls that failed, those refused in a pause not counted.

    Args:
        draft: May raise DraftproofError.
        clock: Seconds, never going back.
    """

    def __init__(self, draft: EngineCall, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_failures = 0
        self._draft = draft
        self._clock = clock
        self._pause_s = 0.0
        self._pause_ends_s = -1.0

    @property
    def is_available(self) -> bool:
        """Whether the draft answered the last time it was asked."""
        return self._pause_s == 0.0

    async def __call__(self, request: GenerationRequest) -> Output:
        """Ask the draft.

        Raises:
            EngineFailedError: It failed a moment ago.
            DraftproofError: It failed now.
        """
        if self._clock() < self._pause_ends_s:
            raise EngineFailedError(
                "the draft is not asked",
                values=f"it failed; {self._pause_ends_s - self._clock():.1f} s of the pause are left",
                limit="a failing draft is tried again after a pause",
                remedy="the server's log has the cause",
            )
        try:
            output = await self._draft(request)
        except RequestTimeoutError:
            raise  # the request's own deadline
        except DraftproofError as error:
            self._note_failure(error)
            raise
        if not self.is_available:
            self._pause_s = 0.0
            _LOG.warning("the draft answers again; speculation resumes")
        return output

    def _note_failure(self, error: DraftproofError) -> None:
        self.num_failures += 1
        if self.is_available:
            _LOG.warning("the draft fails; requests go on with the target alone: %s", error)
        # Failures of calls that were under way together count as one.
        if self._clock() >= self._pause_ends_s:
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LAST_PAUSE_S)
            self._pause_ends_s = self._clock() + self._pause_s
