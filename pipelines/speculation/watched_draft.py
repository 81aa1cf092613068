"""Lets requests continue without a draft that fails, and retries it after a pause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    NothingAllowedError,
    RequestRefusedError,
    RequestTimeoutError,
)
from pipelines.speculation.loop import EngineCall
from pipelines.speculation.request import GenerationRequest, Output

_LOG = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0


class WatchedDraft:
    """Calls a draft and pauses after a failure.

    After a failure all calls are refused for a second, then one is tried. Each further failure doubles the
    pause, up to a minute. The first failure and the recovery are logged. A draft that refuses a request is
    not paused, because it may accept the next one.

    Attributes:
        num_failures: Failed calls, not counting those refused during a pause.
        num_refusals: Requests that the draft refused.

    Args:
        draft: The draft; may raise DraftproofError.
        clock: Monotonic time in seconds.
    """

    def __init__(self, draft: EngineCall, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_failures = 0
        self.num_refusals = 0
        self._draft = draft
        self._clock = clock
        self._pause_s = 0.0
        self._pause_ends_s = -1.0

    @property
    def is_available(self) -> bool:
        """Whether the last call of the draft succeeded."""
        return self._pause_s == 0.0

    async def __call__(self, request: GenerationRequest) -> Output:
        """Call the draft.

        Raises:
            EngineFailedError: The draft is paused after a failure.
            InvalidRequestError, RequestRefusedError: The draft refused this request.
            DraftproofError: The call failed.
        """
        if self._clock() < self._pause_ends_s:
            raise EngineFailedError(
                f"the draft failed and is paused for {self._pause_ends_s - self._clock():.1f} s more",
                "the server's log has the cause",
            )
        try:
            output = await self._draft(request)
        except (RequestTimeoutError, NothingAllowedError):
            raise  # the request's own deadline, or a place where the draft has nothing to propose
        except (InvalidRequestError, RequestRefusedError) as error:
            self.num_refusals += 1
            if self.num_refusals == 1:
                _LOG.warning(
                    "the draft refuses a request, which continues without it; "
                    "draftproof_draft_refusals_total counts the others: %s",
                    error,
                )
            raise
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
            _LOG.warning("the draft fails; requests continue with the target alone: %s", error)
        # Failures of concurrent calls count as one.
        if self._clock() >= self._pause_ends_s:
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LAST_PAUSE_S)
            self._pause_ends_s = self._clock() + self._pause_s
