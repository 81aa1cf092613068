"""One request as an arm answered it: all that a candidate is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipelines.routing.arms import Arm
from pipelines.routing.observation import Failure

Tokens = Literal["", "equal", "tie", "unknown", "diverged"]
"""Against the target's own answer: "" was not compared, "unknown" differs by a margin that is not known."""


@dataclass(frozen=True)
class ObservedRequest:
    """One answer, or the lack of one. Times are in seconds.

    Requests are to be handed over without holes: all that arrived before the last one of them, since those
    still running are the slow ones.

    Attributes:
        request_id: A replay has that of the request that it repeats.
        arm: Who answered.
        arrived_at_s: On any clock that all requests share.
        band: Load band at arrival, of the whole server and not of one arm.
        failure: "" for an answer.
        ttft_s: None without streaming, and where there is no token.
        e2e_latency_s: None without an answer.
        num_output_tokens: Length of the answer.
        drafted_per_round: Draft tokens that each target pass verified; empty where they were not counted.
        accepted_per_round: Of these, those that became output.
        tokens: How they compare.
        prompt_id: Equal prompts have equal names; "" for a prompt of its own.
        session_id: Requests of one session go to one arm; "" for a session of its own.
        is_replay: Whether it repeats a request that another arm answered, in shadow mode.
        num_common_tokens: Output tokens with which both a replay and the answer that it repeats begin; None
            without two answers.
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
    tokens: Tokens = ""
    prompt_id: str = ""
    session_id: str = ""
    is_replay: bool = False
    num_common_tokens: int | None = None

    @property
    def num_rounds(self) -> int:
        """Target passes."""
        return len(self.drafted_per_round)

    @property
    def total_draft_tokens(self) -> int:
        """Over all rounds."""
        return sum(self.drafted_per_round)

    @property
    def total_accepted_draft_tokens(self) -> int:
        """Over all rounds."""
        return sum(self.accepted_per_round)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> ObservedRequest:
        """What ``dataclasses.asdict`` and JSON made of one."""
        lists = {key: tuple(value) for key, value in document.items() if isinstance(value, list)}
        return cls(**{**document, **lists})

    @property
    def itl_s(self) -> float | None:
        """As ``Generation.itl_s``."""
        if self.ttft_s is None or self.e2e_latency_s is None or self.num_output_tokens < 2:
            return None
        return (self.e2e_latency_s - self.ttft_s) / (self.num_output_tokens - 1)
