"""Finds the draft length that maximises output tokens per second over all requests.

Source: SmartSpec, arXiv:2406.14066, for the objective; the ranking of single tokens is ours
(docs/decisions/draft-length.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.speculation.draft_length.step_costs import StepCosts

Probabilities = npt.NDArray[np.float64]
Depths = npt.NDArray[np.int64]

_SELDOM = 10  # once in this many cases
# Longer proposals are considered in steps of this many tokens.
_SHORT, _STRIDE = 8, 4


@dataclass(frozen=True)
class Prospect:
    """Expectations for the next draft tokens of all requests.

    Attributes:
        survival: float64 [requests, cases, positions], probability that a draft token and those before it are
            accepted, for sampled cases of their margins.
        mean_rates: float64 [requests], acceptance rate of a token with unknown margin.
        uses_draft: bool [requests], True for requests that use the draft model; the others use lookup.
        mean_context: Mean context length of a request.
    """

    survival: Probabilities
    mean_rates: Probabilities
    uses_draft: npt.NDArray[np.bool_]
    mean_context: float


@dataclass(frozen=True)
class BestDraft:
    """The best draft and its goodput.

    Attributes:
        threshold: Probability of becoming output above which requests continue to draft.
        depth: Maximum number of draft tokens per request.
        num_rows: Rows of a step that verifies.
        tokens_per_s: Goodput with this draft.
        without: Goodput without drafting.
    """

    threshold: float
    depth: int
    num_rows: int
    tokens_per_s: float
    without: float


def best_draft(prospect: Prospect, draft_costs: StepCosts, target_costs: StepCosts) -> BestDraft:
    """Find the best depth of proposals and number of draft tokens to verify.

    Args:
        prospect: Expectations for at least one request.
        draft_costs: Step costs of the draft.
        target_costs: Step costs of the target.
    """
    num_requests, num_cases, max_depth = prospect.survival.shape
    depths = _depths(max_depth)
    ranked = _ranked(prospect, depths)
    # The probability of the m-th best token differs between cases; it is rarely below this one.
    seldom = num_cases // _SELDOM
    thresholds = np.partition(ranked, seldom, axis=1)[:, seldom]
    # Below, entry [d, m] is for proposals of length depths[d] of which the best m + 1 tokens are verified.
    tokens = num_requests + np.cumsum(ranked.mean(axis=1), axis=1)
    rows = np.arange(num_requests, num_requests + num_requests * max_depth + 1)
    positions = target_costs.positions(rows.astype(np.float64), prospect.mean_context, num_requests)
    verifying_s = target_costs.seconds(rows, positions)
    outside_s = target_costs.overhead.extra_s(num_requests)
    drafting_s = _drafting_s(prospect, depths, thresholds, draft_costs)
    goodput = tokens / (verifying_s[1:] + drafting_s + outside_s)
    longest, best = np.unravel_index(np.argmax(goodput), goodput.shape)
    return BestDraft(
        threshold=float(thresholds[longest, best]),
        depth=int(depths[longest]),
        num_rows=int(rows[best + 1]),
        tokens_per_s=float(goodput[longest, best]),
        without=num_requests / float(verifying_s[0]),
    )


def _depths(max_depth: int) -> Depths:
    """Return the lengths of proposals to consider."""
    return np.array(
        [depth for depth in range(1, max_depth + 1) if depth <= _SHORT or (max_depth - depth) % _STRIDE == 0]
    )


def _ranked(prospect: Prospect, depths: Depths) -> Probabilities:
    """Return survival [depths, cases, draft tokens] in descending order; 0 for tokens beyond a depth."""
    is_drafted = depths[:, np.newaxis] > np.arange(prospect.survival.shape[2])
    is_proposed = is_drafted[:, np.newaxis] | ~prospect.uses_draft[:, np.newaxis]
    worth = prospect.survival.transpose(1, 0, 2) * is_proposed[:, np.newaxis]
    ranked: Probabilities = -np.sort(-worth.reshape(len(depths), worth.shape[1], -1), axis=2)
    return ranked


def _drafting_s(
    prospect: Prospect, depths: Depths, thresholds: Probabilities, costs: StepCosts
) -> Probabilities:
    """Return the time to draft [depths, draft tokens]; the request that drafts longest determines it."""
    num_drafting = int(prospect.uses_draft.sum())
    if not num_drafting:
        return np.zeros(thresholds.shape)
    # A request always drafts its first token, and further ones while they may survive.
    promises = prospect.survival * prospect.mean_rates[:, np.newaxis, np.newaxis]
    longest = np.sort(promises[prospect.uses_draft].max(axis=0), axis=0)
    num_steps = np.ones(thresholds.shape)
    for depth in range(1, int(depths[-1])):
        is_deeper = depths > depth
        shares = 1 - np.searchsorted(longest[:, depth - 1], thresholds[is_deeper]) / len(longest)
        num_steps[is_deeper] += shares
    step_s = float(costs.seconds(num_drafting, num_drafting * prospect.mean_context))
    times: Probabilities = costs.first_s + num_steps * step_s
    return times
