"""Watches a draft: pauses one that fails while requests continue, and warns of one that does not fit."""

from __future__ import annotations

import logging
import math
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

MEMORY_S = 60.0  # after which a token counts 1/e in the acceptance rate
UNFIT_BELOW = 0.3
FIT_ABOVE = 0.4  # the rate must exceed this before the alarm can be raised again
LEAST_DRAFT_TOKENS = 500


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


class AcceptanceAlarm:
    """Watches the acceptance rate of about the last minute and warns when the draft does not fit the traffic.

    The loop counts rounds while the thread that publishes gauges reads the rate.

    Attributes:
        is_unfit: Whether the alarm is raised.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_unfit = False
        self._clock = clock
        self._drafted_at_s = clock()
        # Tokens of all rounds, of which older ones count less.
        self._num_drafted = 0.0
        self._num_accepted = 0.0

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted for a minute."""
        if not self._num_drafted or self._clock() > self._drafted_at_s + MEMORY_S:
            return None
        return self._num_accepted / self._num_drafted

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one round."""
        if not num_draft_tokens:
            return
        now_s = self._clock()
        weight = math.exp((self._drafted_at_s - now_s) / MEMORY_S)
        self._drafted_at_s = now_s
        self._num_accepted = weight * self._num_accepted + num_accepted_tokens
        self._num_drafted = weight * self._num_drafted + num_draft_tokens
        if self._num_drafted >= LEAST_DRAFT_TOKENS:
            self._judge(self._num_accepted / self._num_drafted)

    def _judge(self, rate: float) -> None:
        if rate > FIT_ABOVE:
            self.is_unfit = False
        elif rate < UNFIT_BELOW and not self.is_unfit:
            self.is_unfit = True
            _LOG.warning(
                "the draft does not fit this traffic: about %.0f %% of its tokens of the last minute were "
                "accepted; below %.0f %% drafting seldom pays. Train or choose a draft closer to the target, "
                "or set num_draft_tokens: 0 in the recipe",
                100 * rate,
                100 * UNFIT_BELOW,
            )
