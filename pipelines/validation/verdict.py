"""What the passes amount to: why the proof fails, what it still lacks, and what it would have found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.validation.plan import ADAPTIVE, TARGET_ALONE, Goal
from pipelines.validation.proof import Finding, PassResult
from pipelines.validation.rates import prompts_needed, upper_bound
from pipelines.validation.sampling_kinds import GREEDY, SEEDED, is_greedy
from pipelines.validation.section import Verdict

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Group:
    """What was compared greedily, or with seeds.

    Attributes:
        name: "greedy" or "seeded".
        num_prompts: Different prompts. They, not answers, are the independent trials: two answers to one
            request fail together.
        num_diverged: Prompts with at least one answer that differs or failed.
        num_answers: Answers of draft and target together.
        num_tokens: Theirs.
        num_log_probs: Tokens of these whose log probabilities were compared.
    """

    name: str
    num_prompts: int
    num_diverged: int
    num_answers: int
    num_tokens: int
    num_log_probs: int

    @property
    def rate_bound(self) -> float:
        """The share of prompts that diverge is below this, with 95 % confidence (Clopper-Pearson)."""
        return upper_bound(self.num_diverged, self.num_prompts, CONFIDENCE)

    def detectable_rate(self, probability: float) -> float:
        """Smallest share of diverging prompts of which one would be seen with this probability."""
        return upper_bound(0, self.num_prompts, probability)

    def num_prompts_lacking(self, goal: Goal) -> int:
        """Prompts still to be compared until a share of ``goal.max_rate`` would have been seen."""
        return max(0, prompts_needed(goal.max_rate, CONFIDENCE) - self.num_prompts)


@dataclass(frozen=True)
class Proof:
    """All passes, judged.

    Attributes:
        passes: In the order they ran.
        goal: What must have been compared.
    """

    passes: tuple[PassResult, ...]
    goal: Goal

    @property
    def speculative(self) -> tuple[PassResult, ...]:
        """Passes of draft and target together."""
        return tuple(result for result in self.passes if result.asked.model != TARGET_ALONE)

    @property
    def alone(self) -> tuple[PassResult, ...]:
        """Passes of the target alone: A against A."""
        return tuple(result for result in self.passes if result.asked.model == TARGET_ALONE)

    @property
    def adaptive(self) -> tuple[PassResult, ...]:
        """Passes of draft and target together that leave the draft length to a server that chooses it."""
        return tuple(result for result in self.speculative if result.asked.draft_length.used == ADAPTIVE)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Greedy and seeded, as far as they were asked."""
        by_name = {
            "greedy": [result for result in self.speculative if is_greedy(result.asked.kind)],
            "seeded": [result for result in self.speculative if not is_greedy(result.asked.kind)],
        }
        return tuple(_group(name, results) for name, results in by_name.items() if results)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What differs, in the order of the passes."""
        return tuple(finding for result in self.passes for finding in result.findings)

    @property
    def num_missing(self) -> int:
        """Comparisons that could not be made."""
        return sum(result.num_missing for result in self.passes)

    @property
    def verdict(self) -> Verdict:
        """``fail``, else ``inconclusive`` if something lacks, else ``pass``."""
        if self.failures():
            return "fail"
        return "inconclusive" if self.lacks() else "pass"

    def failures(self) -> list[str]:
        """Why the proof fails; empty if it does not."""
        reasons = []
        for who, results in (
            ("draft and target together", self.speculative),
            ("the target alone", self.alone),
        ):
            if count := sum(len(result.findings) for result in results):
                reasons.append(f"{count} answers of {who} differ from the target's own, asked one at a time")
        if any(result.findings for result in self.alone):
            reasons.append("the target alone depends on what runs beside it: equality cannot hold here")
        for result in self.passes:
            reasons += _failures_of(result)
        drafted = [result for result in self.speculative if result.num_drafted]
        if drafted and not any(result.num_accepted for result in drafted):
            reasons.append("no draft token was ever accepted, so acceptance was not tested")
        if not sum(group.num_tokens for group in self.groups):
            reasons.append("no token was compared at all")
        elif self._asks_for_log_probs and not sum(group.num_log_probs for group in self.groups):
            reasons.append("log probabilities were asked for, but none were compared")
        return reasons

    @property
    def _asks_for_log_probs(self) -> bool:
        return any(result.asked.kind not in (GREEDY, SEEDED) for result in self.speculative)

    def lacks(self) -> list[str]:
        """What is missing for a proof; empty if it is complete."""
        reasons = []
        if self.num_missing:
            reasons.append(f"{self.num_missing} answers could not be compared")
        for result in self.passes:
            if result.asked.with_cancellations and not result.num_cut_off:
                reasons.append(f"{result.asked}: no other request was cut off meanwhile")
            if result.other_draft_lengths:
                others = ", ".join(length or "none" for length in sorted(result.other_draft_lengths))
                reasons.append(f"{result.asked}: answers say that another draft length was used: {others}")
        # One pass may be better off without a draft; if all are, only that was compared.
        if self.adaptive and not any(result.num_drafted for result in self.adaptive):
            reasons.append("adaptive: nothing was drafted in any pass, so the server's choice was not tested")
        for group in self.groups:
            if lacking := group.num_prompts_lacking(self.goal):
                reasons.append(
                    f"{group.name}: {lacking} prompts more are needed to see, with 95 % probability, "
                    f"divergence of {self.goal.max_rate:.2%} of prompts"
                )
            if group.num_tokens < self.goal.num_tokens:
                reasons.append(
                    f"{group.name}: {self.goal.num_tokens - group.num_tokens:,} tokens more are needed, "
                    f"{self.goal.num_tokens:,} in all"
                )
        return reasons


def _failures_of(result: PassResult) -> list[str]:
    reasons = []
    if result.num_tokens == 0 and result.num_missing == 0:
        reasons.append(f"{result.asked}: no token was compared")
    length = result.asked.draft_length.used
    if length == "0" and result.num_drafted:
        reasons.append(f"{result.asked}: speculation was off, but {result.num_drafted} were drafted")
    if length not in ("", "0", ADAPTIVE) and result.num_answers and not result.num_drafted:
        reasons.append(f"{result.asked}: nothing was drafted, so nothing was tested")
    return reasons


def _group(name: str, results: Sequence[PassResult]) -> Group:
    prompts: set[str] = set()
    return Group(
        name=name,
        num_prompts=len(prompts.union(*(result.prompt_ids for result in results))),
        num_diverged=len({finding.prompt.prompt_id for result in results for finding in result.findings}),
        num_answers=sum(result.num_answers for result in results),
        num_tokens=sum(result.num_tokens for result in results),
        num_log_probs=sum(result.num_log_probs for result in results),
    )
