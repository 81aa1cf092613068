"""Defines an observation: everything the router records about one answer, by which a candidate is judged."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Literal

from pipelines import configuration
from pipelines.errors import CanaryError
from pipelines.router.arms import Arm, Band, Expected

_UNIX_TIME_AT_ZERO_S = time.time() - time.monotonic()

_REMEDY = "continue with the version that wrote it, or abort the rollout and start a new one"

Failure = Literal["", "error", "timeout"]

Difference = Literal["", "tokens", "text", "finish_reason", "sequence_length", "chunks", "log_probs"]
"""The first difference between two answers, checked in this order. "chunks": one contradicts itself."""

FallbackReason = Literal["error", "timeout", "busy", "refused", "out"]
"""Why an arm did not answer: it failed; it produced no token in time; its queue was full; it refused a
request that the next arm accepted; its breaker was open."""


def unix_time_s() -> float:
    """Return Unix time that is monotonic even when the system clock is changed."""
    return _UNIX_TIME_AT_ZERO_S + time.monotonic()


@dataclass(frozen=True)
class Divergence:
    """Two answers to one prompt that should be equal and are not, in readable form.

    Attributes:
        prompt: Text of the prompt.
        expected_of: Source of the expected answer: the stable pair, or the candidate's own target alone.
        differs_in: The first difference.
        expected_text: Text of the expected answer.
        candidate_text: Text of the candidate's answer.
        first_difference: Number of output tokens that both have in common at the start.
        expected: The differing value of the expected answer, shortened; "" if the texts show it.
        candidate: The differing value of the candidate's answer.
    """

    prompt: str
    expected_of: Expected
    differs_in: Difference
    expected_text: str
    candidate_text: str
    first_difference: int
    expected: str = ""
    candidate: str = ""


@configuration.strict
@dataclass(frozen=True)
class Observation:
    """One answer, as the log stores it.

    Attributes:
        canary_id: The rollout at arrival; "" for none.
        request_id: Id of the request; a replay has the id of the request that it replays.
        arm: The arm that answered; if none did, the arm that was asked last.
        overridden: Whether the client chose the arm.
        fallback_from: Arms that came before this one and did not answer, in order.
        fallback_reasons: The reason for each of them.
        fallback_faults: What went wrong with each of them, in words; empty if it was not recorded.
        is_replay: Whether this is a replay on the candidate; its latencies are then meaningless.
        arrived_at_s: Unix time of arrival; for a replay, of its start.
        oldest_open_at_s: Arrival of the oldest request or replay in flight when this was recorded; the
            current time if there was none. Everything that arrived earlier has been recorded already.
        band: Load of the whole server at arrival.
        failure: "" for an answer. Cancelled and invalid requests are not recorded.
        fault: What went wrong, in words, such as "HTTP 500"; "" if nothing did or it was not recorded.
        ttft_s: Time to first token; None without streaming or without a token.
        e2e_latency_s: Time from arrival to the end; None without an answer.
        longest_pause_s: Longest time between two responses of a streamed answer; None for a single response.
        num_output_tokens: Length of the answer.
        drafted_per_round: Draft tokens that each target pass verified; empty if not counted.
        accepted_per_round: Accepted draft tokens of each target pass.
        prompt_id: Identifies prompt and sampling; equal ids should have equal answers.
        session_id: The session; "" for none.
        answer: Whether the client would receive from a replay what the candidate should answer
            (``ArmTable.replays_match``); "" if not compared.
        differs_in: The first difference if ``answer`` is "diverged".
        num_common_tokens: Output tokens that a replay and the stable pair's answer have in common at the
            start; None without two answers, and if the candidate drafted nothing.
        divergence: Both answers if ``answer`` is "diverged".
    """

    canary_id: str
    request_id: str
    arm: Arm
    arrived_at_s: float
    oldest_open_at_s: float
    band: Band
    overridden: bool = False
    fallback_from: tuple[Arm, ...] = ()
    fallback_reasons: tuple[FallbackReason, ...] = ()
    fallback_faults: tuple[str, ...] = ()
    is_replay: bool = False
    failure: Failure = ""
    fault: str = ""
    ttft_s: float | None = None
    e2e_latency_s: float | None = None
    longest_pause_s: float | None = None
    num_output_tokens: int = 0
    drafted_per_round: tuple[int, ...] = ()
    accepted_per_round: tuple[int, ...] = ()
    prompt_id: str = ""
    session_id: str = ""
    answer: Literal["", "equal", "diverged"] = ""
    differs_in: Difference = ""
    num_common_tokens: int | None = None
    divergence: Divergence | None = None

    @property
    def itl_s(self) -> float | None:
        """Mean time per output token after the first, as ``Generation.itl_s``."""
        if self.ttft_s is None or self.e2e_latency_s is None or self.num_output_tokens < 2:
            return None
        return (self.e2e_latency_s - self.ttft_s) / (self.num_output_tokens - 1)

    def to_json(self) -> bytes:
        """Return it as JSON; a lone surrogate becomes a question mark.

        Raises:
            ValueError: A number is not finite.
        """
        divergence = None if self.divergence is None else vars(self.divergence)
        document = {**vars(self), "divergence": divergence}  # asdict is ten times slower
        text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")

    @classmethod
    def of_json(cls, content: bytes) -> Observation:
        """Read what ``to_json`` returned.

        Raises:
            CanaryError: Another version wrote it, or it is invalid.
        """
        return configuration.parse_json(cls, content, CanaryError, _REMEDY)
