"""Requests as an arm answered them, by which a candidate is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipelines import configuration
from pipelines.router.arms import Arm
from pipelines.router.observation import Difference, Failure

Compared = Literal["", "equal", "unknown", "diverged"]
"""Comparison with the right answer: "" if not compared, "unknown" if tokens differ by an unknown margin."""


@configuration.strict
@dataclass(frozen=True)
class ObservedRequest:
    """One request and its answer or failure. Times are in seconds.

    A sequence of requests must not have gaps: it contains all that a server received before the last of its
    own, because those that are still running are the slow ones.

    Attributes:
        request_id: Identifier; a replay has that of the request that it repeats.
        arm: Arm that answered.
        arrived_at_s: Time of arrival on a clock that all requests of the server share.
        band: Load band of the whole server at arrival.
        failure: Kind of failure; "" if there is an answer.
        ttft_s: Time to first token; None if the answer was not streamed or has no token.
        e2e_latency_s: End-to-end latency; None without an answer.
        num_output_tokens: Length of the answer.
        drafted_per_round: Draft tokens that each target pass verified; empty if they were not counted.
        accepted_per_round: Draft tokens of each target pass that were accepted.
        answer: Result of the comparison with the right answer.
        prompt_id: Equal for equal prompts; "" if the prompt is unique.
        session_id: Session, whose requests all go to one arm; "" if the request has no session.
        is_replay: Whether the request repeats one that another arm answered.
        num_common_tokens: Number of equal output tokens at the start of a replay's answer and the original;
            None without two answers.
        differs_in: First thing in which the answer differs.
        longest_pause_s: Longest time between two responses of a streamed answer; None for one response.
        fault: What went wrong, in words; "" if nothing did or it was not recorded.
    """

    request_id: str
    arm: Arm
    arrived_at_s: float
    band: str
    failure: Failure = ""
    ttft_s: float | None = None
    e2e_latency_s: float | None = None
    num_output_tokens: int = 0
    drafted_per_round: tuple[int, ...] = ()
    accepted_per_round: tuple[int, ...] = ()
    answer: Compared = ""
    prompt_id: str = ""
    session_id: str = ""
    is_replay: bool = False
    num_common_tokens: int | None = None
    differs_in: Difference = ""
    longest_pause_s: float | None = None
    fault: str = ""

    @property
    def itl_s(self) -> float | None:
        """Mean time per output token after the first, as ``Generation.itl_s``."""
        if self.ttft_s is None or self.e2e_latency_s is None or self.num_output_tokens < 2:
            return None
        return (self.e2e_latency_s - self.ttft_s) / (self.num_output_tokens - 1)
