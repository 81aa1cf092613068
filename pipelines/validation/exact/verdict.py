"""Judge the passes: why the proof fails, what it still lacks, and what it would have detected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.bench.reporting.rates import prompts_needed, upper_bound
from pipelines.bench.reporting.section import Verdict
from pipelines.client.connection import TARGET_ALONE
from pipelines.validation.exact.plan import ADAPTIVE, Goal
from pipelines.validation.exact.proof import Finding, PassResult
from pipelines.validation.exact.sampling_kinds import GREEDY, SEEDED, is_greedy

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Group:
    """Totals of all greedy or all seeded passes.

    Attributes:
        name: "greedy" or "seeded".
        num_prompts: Number of different prompts. These are the independent trials, because answers to one
            prompt fail together.
        num_diverged: Number of prompts with at least one answer that differs or failed.
        num_answers: Number of answers of draft and target together.
        num_tokens: Number of their tokens.
        num_log_probs: Number of these whose log probabilities were compared.
        num_prompt_log_probs: Number of prompt tokens whose log probabilities were compared.
    """

    name: str
    num_prompts: int
    num_diverged: int
    num_answers: int
    num_tokens: int
    num_log_probs: int
    num_prompt_log_probs: int

    @property
    def rate_bound(self) -> float:
        """Upper bound of the share of diverging prompts, with 95 % confidence (Clopper-Pearson)."""
        return upper_bound(self.num_diverged, self.num_prompts, CONFIDENCE)

    def detectable_rate(self, probability: float) -> float:
        """Compute the smallest share of diverging prompts that is detected with a probability."""
        return upper_bound(0, self.num_prompts, probability)

    def num_prompts_lacking(self, goal: Goal) -> int:
        """Return how many more prompts are needed to detect a share of ``goal.max_rate``."""
        return max(0, prompts_needed(goal.max_rate, CONFIDENCE) - self.num_prompts)


@dataclass(frozen=True)
class Proof:
    """A finished proof.

    Attributes:
        passes: Results of the passes in the order in which they ran.
        goal: Least amount of comparisons.
    """

    passes: tuple[PassResult, ...]
    goal: Goal

    @property
    def speculative(self) -> tuple[PassResult, ...]:
        """Passes of draft and target together."""
        return tuple(result for result in self.passes if result.asked.model != TARGET_ALONE)

    @property
    def alone(self) -> tuple[PassResult, ...]:
        """Passes of the target alone (A/A)."""
        return tuple(result for result in self.passes if result.asked.model == TARGET_ALONE)

    @property
    def adaptive(self) -> tuple[PassResult, ...]:
        """Passes of draft and target together in which the server chooses the draft length."""
        return tuple(result for result in self.speculative if result.asked.draft_length.used == ADAPTIVE)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Totals of greedy and of seeded passes, if there are any."""
        by_name = {
            "greedy": [result for result in self.speculative if is_greedy(result.asked.kind)],
            "seeded": [result for result in self.speculative if not is_greedy(result.asked.kind)],
        }
        return tuple(_group(name, results) for name, results in by_name.items() if results)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Answers that differ, in the order of the passes."""
        return tuple(finding for result in self.passes for finding in result.findings)

    @property
    def num_missing(self) -> int:
        """Number of comparisons that could not be made."""
        return sum(result.num_missing for result in self.passes)

    @property
    def missing(self) -> list[tuple[str, int]]:
        """First error of each kind because of which answers are missing, and their number, most first."""
        errors = [error for result in self.passes for error in result.missing]
        first = {error.what: str(error) for error in reversed(errors)}
        return [(first[what], count) for what, count in Counter(error.what for error in errors).most_common()]

    @property
    def was_stopped(self) -> bool:
        """Whether the last pass was not finished."""
        return any(result.was_stopped for result in self.passes)

    @property
    def verdict(self) -> Verdict:
        """``fail``, or ``inconclusive`` if something is missing, or ``pass``."""
        if self.failures():
            return "fail"
        return "inconclusive" if self.lacks() else "pass"

    def failures(self) -> list[str]:
        """Return why the proof fails; empty if it does not."""
        reasons = []
        for who, results in (
            ("draft and target together", self.speculative),
            ("the target alone", self.alone),
        ):
            if count := sum(len(result.findings) for result in results):
                reasons.append(
                    f"{count} answers of {who} differ from the target alone with one request at a time"
                )
        if self.was_stopped:
            return reasons
        if any(result.findings for result in self.alone):
            reasons.append("the target's answers depend on concurrent requests, so equality cannot hold")
        for result in self.passes:
            reasons += _failures_of(result)
        drafted = [result for result in self.speculative if result.num_drafted]
        if drafted and not any(result.num_accepted for result in drafted):
            reasons.append("no draft token was ever accepted, so acceptance was not tested")
        if not sum(group.num_tokens for group in self.groups):
            reasons.append("no token was compared")
        elif self._asks_for_log_probs and not sum(group.num_log_probs for group in self.groups):
            reasons.append("log probabilities were requested, but none were compared")
        elif any(result.num_asked_for_prompt for result in self.speculative) and not any(
            result.num_prompt_log_probs for result in self.speculative
        ):
            reasons.append("log probabilities of prompts were requested, but none were compared")
        return reasons

    def reasons_of_missing(self) -> list[str]:
        """Return why answers could not be compared; empty if all were."""
        return [
            f"{count} answers could not be compared, because the server answered: {error}"
            for error, count in self.missing
        ]

    @property
    def _asks_for_log_probs(self) -> bool:
        return any(result.asked.kind not in (GREEDY, SEEDED) for result in self.speculative)

    def lacks(self) -> list[str]:
        """Return what the proof lacks; empty if it is complete."""
        reasons = self.reasons_of_missing()
        if self.was_stopped:
            return reasons
        for result in self.passes:
            if result.asked.with_cancellations and not result.num_cut_off:
                reasons.append(f"{result.asked}: no other request was cancelled meanwhile")
            if result.other_draft_lengths:
                others = ", ".join(length or "none" for length in sorted(result.other_draft_lengths))
                reasons.append(f"{result.asked}: answers report another draft length: {others}")
        # A single pass may rightly draft nothing; if none drafts, speculation was not tested.
        if self.adaptive and not any(result.num_drafted for result in self.adaptive):
            reasons.append("adaptive: nothing was drafted in any pass, so the server's choice was not tested")
        for group in self.groups:
            if lacking := group.num_prompts_lacking(self.goal):
                reasons.append(
                    f"{group.name}: {lacking} more prompts are needed to detect divergence of "
                    f"{self.goal.max_rate:.2%} of prompts with 95 % probability"
                )
            if group.num_tokens < self.goal.num_tokens:
                reasons.append(
                    f"{group.name}: {self.goal.num_tokens - group.num_tokens:,} more tokens are needed, "
                    f"{self.goal.num_tokens:,} in all"
                )
        return reasons


def _failures_of(result: PassResult) -> list[str]:
    reasons = []
    if result.num_tokens == 0 and result.num_missing == 0:
        reasons.append(f"{result.asked}: no token was compared")
    length = result.asked.draft_length.used
    if length == "0" and result.num_drafted:
        reasons.append(f"{result.asked}: speculation was off, but {result.num_drafted} tokens were drafted")
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
        num_prompt_log_probs=sum(result.num_prompt_log_probs for result in results),
    )
