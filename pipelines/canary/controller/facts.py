"""The facts from which a rollout's next phase is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.canary.judge.verdict import Action, Analysis, Word

Order = Literal["pause", "resume", "promote", "abort"]


@dataclass(frozen=True)
class Outcome:
    """Result of the work of a phase.

    Attributes:
        is_good: Whether the next phase may begin.
        reason: Explanation in a sentence.
        evidence: Figures behind it, ready for JSON.
        needs_review: Whether a person has to decide, because the result neither passes nor fails.
    """

    is_good: bool
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)
    needs_review: bool = False


@dataclass(frozen=True)
class Judged:
    """Judgement of the requests so far.

    Attributes:
        verdict: Verdict of the analysis.
        action: Action that the analysis recommends.
        reason: Metrics behind it, in a sentence.
        needs_replays: Whether a metric that only replays can decide, such as equal tokens, has not passed.
    """

    verdict: Word
    action: Action
    reason: str
    needs_replays: bool = True

    @classmethod
    def of(cls, analysis: Analysis) -> Judged:
        """Summarize an analysis."""
        named: dict[str, list[str]] = {}
        for each in analysis.judged:
            named.setdefault(each.word, []).append(each.named)
        words = ("fail",) if "fail" in named else ("needs review", "inconclusive")
        reason = "; ".join(f"{word}: {', '.join(named[word])}" for word in words if word in named)
        needs_replays = any(each.metric.by_replays and each.verdict != "pass" for each in analysis.judged)
        return cls(analysis.verdict, analysis.action, reason, needs_replays)


@dataclass(frozen=True)
class Facts:
    """Inputs of a decision.

    Attributes:
        now_s: Unix time.
        order: Order of an operator; None if there is none.
        outcome: Result of the phase's work; None while it is not done, or if the phase has none.
        judged: Judgement of the requests so far; None without requests.
        num_pairs: Requests of clients so far that the candidate answered and that have a counterpart of the
            stable pair.
        num_replays: Replays so far.
        idle_s: Seconds since the latest awaited pair (``num_awaited``).
        down_s: Seconds for which the candidate's socket has refused connections; 0 if it accepts them.
        has_restarted: Whether the candidate's process has ended and another one has taken its place.
        broken: Why the evidence cannot be read or judged; "" if it can.
        unmeasured: Why memory and CPU time have not been measured for ``idle_s``; "" if they were.
        faulty: Server whose candidate is down or has restarted; "" if there is one server.
        is_incomplete: Whether a server that should have the candidate is still getting it.
        waits_for: Servers without which the rollout must wait, in words; "" if a majority answers.
    """

    now_s: float
    order: Order | None = None
    outcome: Outcome | None = None
    judged: Judged | None = None
    num_pairs: int = 0
    num_replays: int = 0
    idle_s: float = 0.0
    down_s: float = 0.0
    has_restarted: bool = False
    broken: str = ""
    unmeasured: str = ""
    faulty: str = ""
    is_incomplete: bool = False
    waits_for: str = ""
