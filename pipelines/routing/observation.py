"""What one answer says, or the lack of one: all that a candidate is judged by, as the router saw it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pipelines.errors import CanaryError
from pipelines.routing.arms import Arm, Band, Expected
from pipelines.routing.strict_json import parse

FORMAT = 2

Failure = Literal["", "error", "timeout"]

FallbackReason = Literal["error", "timeout", "busy", "refused", "out"]
"""It failed; it gave no token in time; its queue was full; it took the request for nonsense, which the next
arm did not; it was not asked, because it had failed too often."""


@dataclass(frozen=True)
class Divergence:
    """Two answers to one prompt that should be equal and are not, as people read them.

    Attributes:
        prompt: Text.
        expected_of: Who gave the answer that was right: the stable pair, or the candidate's own target alone.
        expected_text: That answer.
        candidate_text: What the candidate answered.
        first_difference: Output tokens that both begin with.
    """

    prompt: str
    expected_of: Expected
    expected_text: str
    candidate_text: str
    first_difference: int


@dataclass(frozen=True)
class Observation:
    """One answer, on one line of the log.

    Attributes:
        canary_id: The rollout at arrival; "" for none.
        generation: Of the table of arms at arrival.
        request_id: A replay has that of the request that it repeats.
        key: What decided where the request goes: its session, or itself.
        arm: Who answered; where nobody did, who was asked last.
        overridden: Whether the client chose the arm, so that chance did not.
        fallback_from: Arms that were to answer before this one, in that order, and did not.
        fallback_reasons: Why, for each of them.
        is_replay: Whether the candidate repeats what the stable pair answered; its times then mean nothing.
        arrived_at_s: Unix time; of a replay, when it was begun.
        oldest_open_at_s: Arrival of the oldest request that was open when this was noted, replays among
            them, or the time then if there was none. All that arrived before has been noted before.
        band: Load of the whole server at arrival.
        failure: "" for an answer. A client that left or that asked for nonsense is not observed at all.
        ttft_s: From arrival to the first token on its way to the client; None without streaming, and where
            there is no token.
        e2e_latency_s: From arrival to the end; None without an answer.
        num_output_tokens: Length of the answer.
        drafted_per_round: Draft tokens that each target pass verified; empty where they were not counted.
        accepted_per_round: Of these, those that became output.
        draft_length: Draft tokens per round that the request asked for; None for the server's choice.
        prompt_id: Names prompt and sampling, so that equal names should have equal answers.
        session_id: "" for a request of its own.
        output_hash: ``output_hash`` of the answer's tokens; "" without an answer.
        tokens: How a replay compares with what the candidate should say (``ArmTable.replays_match``); "" if
            it was not compared.
        num_common_tokens: Output tokens with which both a replay and the stable pair's answer begin; None
            without two answers.
        divergence: Both texts, where ``tokens`` is "diverged".
    """

    canary_id: str
    generation: int
    request_id: str
    key: str
    arm: Arm
    arrived_at_s: float
    oldest_open_at_s: float
    band: Band
    overridden: bool = False
    fallback_from: tuple[Arm, ...] = ()
    fallback_reasons: tuple[FallbackReason, ...] = ()
    is_replay: bool = False
    failure: Failure = ""
    ttft_s: float | None = None
    e2e_latency_s: float | None = None
    num_output_tokens: int = 0
    drafted_per_round: tuple[int, ...] = ()
    accepted_per_round: tuple[int, ...] = ()
    draft_length: int | None = None
    prompt_id: str = ""
    session_id: str = ""
    output_hash: str = ""
    tokens: Literal["", "equal", "diverged"] = ""
    num_common_tokens: int | None = None
    divergence: Divergence | None = None

    def to_line(self) -> bytes:
        """One line of JSON in ASCII, its end included.

        Raises:
            ValueError: A number is not finite.
        """
        document = {"format": FORMAT, **dataclasses.asdict(self)}
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Observation:
        """What ``to_line`` wrote.

        Raises:
            CanaryError: It is of another version, or makes no sense.
        """
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict) or raw.pop("format", None) != FORMAT:
            raise CanaryError(
                "an observation is of another version",
                values=f"{line[:80]!r}",
                limit=f"a line of JSON with format={FORMAT}",
                remedy="go on with the version that wrote it, or abort the rollout and begin a new one",
            )
        return parse(cls, raw)


def output_hash(output_ids: Iterable[int]) -> str:
    """Names the tokens of an answer, in 32 hex digits; equal answers have equal names (BLAKE2b, RFC 7693)."""
    return hashlib.blake2b(",".join(map(str, output_ids)).encode(), digest_size=16).hexdigest()
