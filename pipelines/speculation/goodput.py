"""The draft that makes the most output tokens per second, of all requests together.

Source: SmartSpec, arXiv:2406.14066, for the objective; the ranking of single tokens is ours
(docs/decisions/0016-rows-of-a-step.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.step_costs import StepCosts

Probabilities = npt.NDArray[np.float64]
Depths = npt.NDArray[np.int64]

_SELDOM = 10  # in one case of so many
_LEAST_ROWS = 2  # of a step (executor/step.py): a single request has the row of one draft token for nothing
# Longer proposals are weighed in steps of so many tokens: one more of them hardly ever decides.
_SHORT, _STRIDE = 8, 4


@dataclass(frozen=True)
class Prospect:
    """What is to be expected of the next draft tokens of all requests.

    Attributes:
        survival: float64 [requests, cases, positions]: probability that a draft token and those before it
            are accepted, in each case of what margins may come.
        mean_rates: float64 [requests], acceptance of a token whose margin is not known yet.
        uses_draft: bool [requests]; the others look their tokens up.
        mean_context: Tokens that a row reads, on the mean.
    """

    survival: Probabilities
    mean_rates: Probabilities
    uses_draft: npt.NDArray[np.bool_]
    mean_context: float


@dataclass(frozen=True)
class BestDraft:
    """The best way to draft, and what it is worth.

    Attributes:
        threshold: Probability of becoming output above which requests draft on.
        depth: Tokens that a request drafts at most.
        tokens_per_s: Goodput with it.
        without: Goodput without drafting.
    """

    threshold: float
    depth: int
    tokens_per_s: float
    without: float


def best_draft(prospect: Prospect, draft_costs: StepCosts, target_costs: StepCosts) -> BestDraft:
    """Weigh every depth of the proposals and every number of draft tokens to verify.

    Args:
        prospect: Of at least one request.
        draft_costs: Of the draft's steps.
        target_costs: Of the target's.
    """
    num_requests, num_cases, max_depth = prospect.survival.shape
    depths = _depths(max_depth)
    ranked = _ranked(prospect, depths)
    # What the last of the best m promises differs from case to case: seldom is it less than this.
    seldom = num_cases // _SELDOM
    thresholds = np.partition(ranked, seldom, axis=1)[:, seldom]
    # Entry [d, m] of what follows: proposals are depths[d] long, the best m + 1 of all tokens are verified.
    tokens = num_requests + np.cumsum(ranked.mean(axis=1), axis=1)
    rows = np.arange(num_requests, num_requests + num_requests * max_depth + 1)
    verifying_s = target_costs.seconds(np.maximum(rows, _LEAST_ROWS), rows * prospect.mean_context)
    goodput = tokens / (verifying_s[1:] + _drafting_s(prospect, depths, thresholds, draft_costs))
    longest, best = np.unravel_index(np.argmax(goodput), goodput.shape)
    return BestDraft(
        threshold=float(thresholds[longest, best]),
        depth=int(depths[longest]),
        tokens_per_s=float(goodput[longest, best]),
        without=num_requests / float(verifying_s[0]),
    )


def _depths(max_depth: int) -> Depths:
    """Lengths of proposals that are weighed."""
    return np.array(
        [depth for depth in range(1, max_depth + 1) if depth <= _SHORT or (max_depth - depth) % _STRIDE == 0]
    )


def _ranked(prospect: Prospect, depths: Depths) -> Probabilities:
    """[depths, cases, draft tokens]: survival, the greatest first; 0 for what is not proposed at a depth."""
    is_drafted = depths[:, np.newaxis] > np.arange(prospect.survival.shape[2])
    is_proposed = is_drafted[:, np.newaxis] | ~prospect.uses_draft[:, np.newaxis]
    worth = prospect.survival.transpose(1, 0, 2) * is_proposed[:, np.newaxis]
    ranked: Probabilities = -np.sort(-worth.reshape(len(depths), worth.shape[1], -1), axis=2)
    return ranked


def _drafting_s(
    prospect: Prospect, depths: Depths, thresholds: Probabilities, costs: StepCosts
) -> Probabilities:
    """[depths, draft tokens]: seconds of drafting; the request that drafts longest is waited for."""
    num_drafting = int(prospect.uses_draft.sum())
    if not num_drafting:
        return np.zeros(thresholds.shape)
    # A token is drafted if it may survive, and the first of a request in any case.
    promises = prospect.survival * prospect.mean_rates[:, np.newaxis, np.newaxis]
    longest = np.sort(promises[prospect.uses_draft].max(axis=0), axis=0)
    num_steps = np.ones(thresholds.shape)
    for depth in range(1, int(depths[-1])):
        is_deeper = depths > depth
        shares = 1 - np.searchsorted(longest[:, depth - 1], thresholds[is_deeper]) / len(longest)
        num_steps[is_deeper] += shares
    times: Probabilities = costs.first_s + num_steps * float(costs.seconds(max(num_drafting, 2)))
    return times
