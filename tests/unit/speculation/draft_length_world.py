"""A world with known costs and acceptance, in which a controller of draft lengths is tried."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.executor.rows import RowBudget
from pipelines.speculation.draft_length.adaptive import DraftLengths
from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength, Proposal
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.draft_length.survival import MARGIN_EDGES, AcceptanceByMargin
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS

# Measured on the pair demo-large (docs/decisions/draft-length.md): seconds of a target step by rows.
ROWS = (2, 3, 5, 9, 12, 16, 24, 40, 72)
TARGET_S = (0.0138, 0.0142, 0.0146, 0.0157, 0.0182, 0.0253, 0.0329, 0.0493, 0.085)
DRAFT_S = (0.00025, 0.00025, 0.00025, 0.00027, 0.0003, 0.0003, 0.0004, 0.0005, 0.0008)
RATES = (0.45, 0.54, 0.63, 0.80, 0.93, 0.975, 0.987, 0.995, 0.995)
SHARES = tuple(np.array([6.3, 8, 12, 18.5, 14, 10, 15, 7.5, 8.7]) / 100)
MAX_DRAFT_LEN = 8
CHANGE_S = 0.0025
DRAFTING_S = 0.0005
"""The cost of a drafting round besides its steps, unknown to the controller."""

_CUMULATIVE = np.cumsum(SHARES)[:-1].tolist()

Agreement = Callable[[int], float]
"""Maps a round to how well the text suits the draft: 1 as calibrated, 0 not at all."""


@dataclass(frozen=True)
class Machine:
    """Costs of a machine, by rows, and what the calibration says about its target.

    Attributes:
        calibrated_s: Calibrated seconds of a step of the target.
        overhead_s: Seconds outside of the engines for each request that speculates.
    """

    calibrated_s: Sequence[float] = TARGET_S
    target_s: Sequence[float] = TARGET_S
    draft_s: Sequence[float] = DRAFT_S
    overhead_s: float = 0.0


class World:
    """Requests that never end."""

    def __init__(
        self, num_requests: int, agreement: Agreement, seed: int = 0, machine: Machine | None = None
    ) -> None:
        machine = machine or Machine()
        self._seed = seed
        self._agreement = agreement
        self._num_requests = num_requests
        self._position = 0
        self._overhead_s = machine.overhead_s
        self._target = StepCosts(ROWS, machine.target_s)
        self._draft = StepCosts(ROWS, machine.draft_s)
        self._learnt = StepCosts(ROWS, machine.calibrated_s)
        self.lengths = DraftLengths(
            AcceptanceByMargin(RATES, SHARES), self._draft, self._learnt, MAX_DRAFT_LEN
        )

    def adaptive(self, num_rounds: int) -> tuple[float, list[float]]:
        """Return tokens per second, and the mean number of verified draft tokens of each round."""
        return self._run([self.lengths.begin(NO_TOKENS) for _ in range(self._num_requests)], num_rounds)

    def fixed(self, length: int, num_rounds: int) -> float:
        return self._run([FixedDraftLength(length)] * self._num_requests, num_rounds)[0]

    def _run(self, requests: list[DraftLength], num_rounds: int) -> tuple[float, list[float]]:
        budget = RowBudget(self._learnt, CHANGE_S, lambda: self.lengths.tokens_per_s)
        num_tokens, seconds, verified, last_rows = 0, 0.0, [], 0
        for number in range(num_rounds):
            proposals, right = [], []
            # All ways of drafting get the same random numbers, so that nothing else differs.
            luck = np.random.default_rng((self._seed, number)).random((len(requests), MAX_DRAFT_LEN, 2))
            for request, draws in zip(requests, luck.tolist(), strict=True):
                plan = request.next_round(1000)
                drafted, num_right = self._draft_tokens(
                    draws[: plan.max_tokens], plan.keep_drafting(), number
                )
                proposals.append(plan.complete(drafted if plan.max_tokens else None))
                right.append(num_right)
            counts, rows = _fit(proposals, budget)
            for request, proposal, count, num_right in zip(requests, proposals, counts, right, strict=True):
                num_accepted = min(num_right, count)
                num_tokens += num_accepted + 1
                # Token 0 is never right; the others never repeat, so there is nothing to look up.
                self._position += 100
                own = np.full(1, self._position, np.int32)
                drafted_ids = NO_TOKENS if proposal.drafted is None else proposal.drafted.token_ids
                output = np.concatenate((drafted_ids[:num_right], own))[: num_accepted + 1]
                request.observe(proposal, output)
            depth = max(0 if each.drafted is None else len(each.drafted.token_ids) for each in proposals)
            step_s = float(self._target.seconds(max(rows, 2))) + CHANGE_S * (rows != last_rows)
            seconds += step_s + self._teach(max(rows, 2), step_s, drafts=depth > 0)
            seconds += DRAFTING_S * (depth > 0)
            seconds += depth * float(self._draft.seconds(max(self._num_requests, 2)))
            verified.append(sum(counts) / len(requests))
            last_rows = rows
        return num_tokens / seconds, verified

    def _teach(self, rows: int, step_s: float, *, drafts: bool) -> float:
        """Teach the cost model a step, as ``RowSteps`` does; return its time outside of the engine."""
        overhead = self._learnt.overhead
        outside_s = self._num_requests * self._overhead_s * drafts
        overhead.observe(self._num_requests, outside_s, "adapted" if self.lengths.is_on else "alone")
        extra_s = overhead.extra_s(self._num_requests) * self.lengths.is_on
        self._learnt.observe(rows, 0, max(step_s + outside_s - extra_s, step_s))
        return outside_s

    def _draft_tokens(
        self, draws: list[list[float]], keep_drafting: Callable[[float], bool] | None, number: int
    ) -> tuple[Output, int]:
        edges = (0.0, *MARGIN_EDGES)
        margins, is_right = [], []
        for which, whether in draws:
            margin_class = bisect(_CUMULATIVE, which)
            margins.append(edges[margin_class] + 0.01)
            is_right.append(whether < RATES[margin_class] * self._agreement(number))
            if keep_drafting is not None and not keep_drafting(margins[-1]):
                break
        num_right = is_right.index(False) if False in is_right else len(is_right)
        self._position += 100
        truth = np.arange(self._position, self._position + len(is_right))
        token_ids = np.where(is_right, truth, 0).astype(np.int32)
        return Output(token_ids, "length", True, margins=np.array(margins, np.float32)), num_right


def _fit(proposals: list[Proposal], budget: RowBudget) -> tuple[list[int], int]:
    """Fit proposals as ``fit_to_budget`` does: return the verified tokens of each, and the step's rows."""
    survivals = [np.empty(0) if proposal.survival is None else proposal.survival for proposal in proposals]
    num_needed = sum(
        1 + (len(proposal.token_ids) if proposal.survival is None else 0) for proposal in proposals
    )
    ranked = np.sort(np.concatenate(survivals))[::-1]
    rows = budget.rows(num_needed, ranked)
    least = ranked[: rows - num_needed].min(initial=2.0)
    return [
        len(proposal.token_ids) if proposal.survival is None else int((proposal.survival >= least).sum())
        for proposal in proposals
    ], rows
