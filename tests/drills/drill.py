"""Lists the drills: each candidate, how its rollout has to end, and within how many requests."""

from __future__ import annotations

from dataclasses import dataclass

_GONE = "refused connections|errors"
"""Requests to a crashed candidate fail; either metric may be the first to show it."""

PHASES_UP = ("preflight", "loading", "cold_start", "shadow", "step/1", "promoting", "settling")


@dataclass(frozen=True)
class Drill:
    """One candidate and the outcome that its rollout must have.

    Attributes:
        name: A short description.
        ends_in: The phase in which the rollout must end.
        most_requests: The most client requests that may pass before the decision.
        because: A pattern that the decision's reason must match.
        fault: A key of ``faults.FAULTS``; "" for no fault.
        has_other_tokenizer: Whether the candidate's tokenizer has two tokens exchanged.
        killed_in: The phases in which its controller gets SIGKILL, once each.
    """

    name: str
    ends_in: str
    most_requests: int
    because: str
    fault: str = ""
    has_other_tokenizer: bool = False
    killed_in: tuple[str, ...] = ()


GOOD = Drill("a good candidate", "promoted", 6000, "every metric is within its limit")
TOKENIZER = Drill("a wrong tokenizer", "rolled_back", 100, "tokenizer", has_other_tokenizer=True)
LESS_ACCEPTED = Drill("acceptance cut by 20 %", "rolled_back", 1500, "acceptance|survival", "less accepted")
SLOWER = Drill("30 % slower", "rolled_back", 4000, "ttft|itl|e2e_tail|speed_up", "slower")
FAILING = Drill("2 % of requests fail", "rolled_back", 3000, "errors", "failing")
CRASHING = Drill("its process crashes", "rolled_back", 1500, _GONE, "crashing")
PAUSING = Drill("a pause of 0.6 s in 4 % of the answers", "rolled_back", 4000, "pauses", "pausing")
LEAKING = Drill("a leak of a megabyte per answer", "rolled_back", 4000, "memory", "leaking")
BURNING = Drill("twice the CPU time per token", "rolled_back", 4000, "cpu_per_token", "burning")


def _heard(name: str, differs_in: str, fault: str) -> Drill:
    """Make a drill whose candidate answers differently in `differs_in`, which the reason must name."""
    return Drill(name, "rolled_back", 1000, rf"fail: answers \({differs_in} of", fault)


DIVERGING = _heard("different tokens for 1 % of prompts", "tokens", "diverging")
SHORT = _heard("the last token is missing for 2 % of prompts", "tokens", "short")
OTHER_TEXT = _heard("different text of the same tokens for 2 % of prompts", "text", "other text")
STOPPING = _heard("wrong finish_reason for 3 % of prompts", "finish_reason", "stopping")
WRONG_CHUNKS = _heard("wrong chunk lengths for 3 % of prompts", "chunks", "wrong chunks")
OTHER_LOG_PROBS = _heard(
    "wrong log probabilities in 10 % of the requests for them", "log_probs", "other log probabilities"
)
KILLED_UP = Drill(
    "a good candidate, the controller killed in each phase",
    "promoted",
    6000,
    "every metric is within its limit",
    killed_in=PHASES_UP,
)
KILLED_DOWN = Drill(
    "its process crashes, the controller killed during the rollback",
    "rolled_back",
    1500,
    _GONE,
    "crashing",
    killed_in=("step/1", "rolling_back"),
)

DRILLS = (
    GOOD,
    TOKENIZER,
    DIVERGING,
    LESS_ACCEPTED,
    SLOWER,
    FAILING,
    CRASHING,
    STOPPING,
    SHORT,
    OTHER_TEXT,
    OTHER_LOG_PROBS,
    WRONG_CHUNKS,
    PAUSING,
    LEAKING,
    BURNING,
    KILLED_UP,
    KILLED_DOWN,
)
