"""What is drilled: each candidate, how its rollout has to end, and within how many requests."""

from __future__ import annotations

from dataclasses import dataclass

_GONE = "nobody has answered|errors"
"""Its requests fail from the crash on: whichever is shown first."""

PHASES_UP = ("preflight", "loading", "cold_start", "shadow", "step/1", "promoting", "settling")


@dataclass(frozen=True)
class Drill:
    """One of them.

    Attributes:
        name: In words.
        ends_in: The last phase.
        most_requests: Of clients, from the beginning of the rollout to the decision.
        because: What the reason of the decision names.
        fault: Of ``faults.FAULTS``; "" for none.
        has_other_tokenizer: Whether two tokens of the candidate have changed places.
        killed_in: Phases in which its controller gets SIGKILL, once each.
    """

    name: str
    ends_in: str
    most_requests: int
    because: str
    fault: str = ""
    has_other_tokenizer: bool = False
    killed_in: tuple[str, ...] = ()


GOOD = Drill("a good candidate", "promoted", 6000, "every loss is within its limit")
TOKENIZER = Drill("a wrong tokenizer", "rolled_back", 100, "tokenizer", has_other_tokenizer=True)
DIVERGING = Drill("another output for 1 % of prompts", "rolled_back", 1000, "fail: tokens", "diverging")
LESS_ACCEPTED = Drill("acceptance cut by 20 %", "rolled_back", 1500, "acceptance|survival", "less accepted")
SLOWER = Drill("30 % slower", "rolled_back", 4000, "ttft|itl|e2e_tail|speed_up", "slower")
FAILING = Drill("2 % of requests fail", "rolled_back", 3000, "errors", "failing")
CRASHING = Drill("its process crashes", "rolled_back", 1500, _GONE, "crashing")
KILLED_UP = Drill(
    "a good candidate, the controller killed in each phase",
    "promoted",
    6000,
    "every loss is within its limit",
    killed_in=PHASES_UP,
)
KILLED_DOWN = Drill(
    "its process crashes, the controller killed while it leaves",
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
    KILLED_UP,
    KILLED_DOWN,
)
