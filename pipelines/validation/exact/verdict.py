"""Judge the passes: why the proof fails, what it still lacks, and what it would have detected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.bench.reporting.rates import prompts_needed, upper_bound
from pipelines.bench.reporting.section import Verdict
from pipelines.client.connection import TARGET_ALONE
from pipelines.validation.exact.plan import ADAPTIVE
from pipelines.validation.exact.proof import Finding, PassResult, Totals
from pipelines.validation.exact.sampling_kinds import GREEDY, SEEDED, is_greedy
from pipelines.validation.stopping import StoppedError

CONFIDENCE = 0.95


def total(results: Sequence[PassResult]) -> Totals:
    """Add up the counts of some passes."""
    return sum((result.totals for result in results), Totals())


def group_figures(name: str, results: Sequence[PassResult], max_rate: float) -> dict[str, Any]:
    """Return what some passes show about the share of prompts whose answers differ.

    Prompts are the independent trials, because answers to one prompt fail together. The bounds are one-sided
    (Clopper-Pearson).

    Args:
        name: Name of the passes.
        results: Their results.
        max_rate: Share of diverging prompts that must be detected.
    """
    prompts = {prompt_id for result in results for prompt_id in result.prompt_ids}
    diverged = {finding.question.prompt.prompt_id for result in results for finding in result.findings}
    counts = total(results)
    return {
        "name": name,
        "prompts": len(prompts),
        "answers": counts.answers_compared,
        "tokens": counts.tokens_compared,
        "tokens_with_log_probs": counts.tokens_with_log_probs,
        "prompt_tokens_with_log_probs": counts.prompt_tokens_with_log_probs,
        "prompts_that_diverged": len(diverged),
        "rate_upper_bound_95": upper_bound(len(diverged), len(prompts), 0.95),
        "detectable_rate_95": upper_bound(0, len(prompts), 0.95),
        "prompts_still_needed": max(0, prompts_needed(max_rate, CONFIDENCE) - len(prompts)),
    }


@dataclass(frozen=True)
class Proof:
    """A finished proof.

    Attributes:
        passes: Results of the passes in the order in which they ran.
        max_rate: Share of diverging prompts that must be detected with 95 % probability.
        max_tokens: Most output tokens of an answer.
        stopped: Why the proof ended early; None if it did not.
    """

    passes: tuple[PassResult, ...]
    max_rate: float
    max_tokens: int = 0
    stopped: StoppedError | None = None

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
        return tuple(result for result in self.speculative if result.asked.draft_length.name == ADAPTIVE)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Figures of the greedy and of the seeded passes, if there are any (``group_figures``)."""
        greedy = [result for result in self.speculative if is_greedy(result.asked.kind)]
        seeded = [result for result in self.speculative if not is_greedy(result.asked.kind)]
        named = ("greedy", greedy), ("seeded", seeded)
        return [group_figures(name, results, self.max_rate) for name, results in named if results]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Answers that differ, in the order of the passes."""
        return tuple(finding for result in self.passes for finding in result.findings)

    @property
    def missing(self) -> list[tuple[str, int]]:
        """First error of each kind because of which answers are missing, and their number, most first."""
        all_errors = (error for result in self.passes for error in result.missing)
        errors = [error for error in all_errors if not isinstance(error, StoppedError)]
        first = {error.code: str(error) for error in reversed(errors)}
        return [(first[code], count) for code, count in Counter(error.code for error in errors).most_common()]

    @property
    def verdict(self) -> Verdict:
        """``fail``, or ``inconclusive`` if something is missing, or ``pass``."""
        if self.failures():
            return "fail"
        return "inconclusive" if self.lacks() else "pass"

    def failures(self) -> list[str]:
        """Return why the proof fails; empty if it does not."""
        together, alone = total(self.speculative), total(self.alone)
        reasons = [
            f"{counts.answers_that_differ} answers of {who} differ from the target alone with one request at "
            "a time"
            for who, counts in (("draft and target together", together), ("the target alone", alone))
            if counts.answers_that_differ
        ]
        if self.stopped:
            return reasons
        if alone.answers_that_differ:
            reasons.append("the target's answers depend on concurrent requests, so equality cannot hold")
        for result in self.passes:
            reasons += _failures_of(result)
        if together.total_draft_tokens and not together.total_accepted_draft_tokens:
            reasons.append("no draft token was ever accepted, so acceptance was not tested")
        asks_for_log_probs = any(result.asked.kind not in (GREEDY, SEEDED) for result in self.speculative)
        if not together.tokens_compared:
            reasons.append("no token was compared")
        elif asks_for_log_probs and not together.tokens_with_log_probs:
            reasons.append("log probabilities were requested, but none were compared")
        elif together.answers_with_prompt_log_probs and not together.prompt_tokens_with_log_probs:
            reasons.append("log probabilities of prompts were requested, but none were compared")
        return reasons

    def reasons_of_missing(self) -> list[str]:
        """Return why answers could not be compared; empty if all were."""
        return [
            f"{count} answers could not be compared, because the server answered: {error}"
            for error, count in self.missing
        ]

    def lacks(self) -> list[str]:
        """Return what the proof lacks; empty if it is complete."""
        reasons = self.reasons_of_missing()
        if self.stopped:
            num_compared = total(self.passes).answers_compared
            done = f"{num_compared:,} comparisons in {len(self.passes)} passes were finished"
            return [f"{self.stopped}; {done}; the rest was not asked", *reasons]
        for result in self.passes:
            if result.asked.with_cancellations and not result.totals.requests_cut_off:
                reasons.append(f"{result.asked}: no other request was cancelled meanwhile")
            if result.other_draft_lengths:
                others = ", ".join(length or "none" for length in sorted(result.other_draft_lengths))
                reasons.append(f"{result.asked}: answers report another draft length: {others}")
        # A single pass may rightly draft nothing; if none drafts, speculation was not tested.
        if self.adaptive and not total(self.adaptive).total_draft_tokens:
            reasons.append("adaptive: nothing was drafted in any pass, so the server's choice was not tested")
        reasons += [
            f"{group['name']}: {group['prompts_still_needed']} more prompts are needed to detect divergence "
            f"of {self.max_rate:.2%} of prompts with 95 % probability"
            for group in self.groups
            if group["prompts_still_needed"]
        ]
        return reasons


def _failures_of(result: PassResult) -> list[str]:
    reasons = []
    totals = result.totals
    if not totals.tokens_compared and not totals.answers_missing:
        reasons.append(f"{result.asked}: no token was compared")
    if result.num_drafted_while_off:
        drafted = f"{result.num_drafted_while_off} tokens were drafted"
        reasons.append(f"{result.asked}: speculation was off, but {drafted}")
    drafts = any(used not in ("", "0", ADAPTIVE) for _, used in result.asked.draft_length.in_turn)
    if drafts and totals.answers_compared and not totals.total_draft_tokens:
        reasons.append(f"{result.asked}: nothing was drafted, so nothing was tested")
    return reasons
