"""Measure a pair's acceptance baseline (``pipelines/bench/reporting/acceptance_baseline.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipelines.bench.calibration.pair_acceptance import answer_prompts
from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.executor.executor import Executor
from pipelines.speculation.draft_length.calibration import Calibration, EngineCosts
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.token_ids import TokenIds

_NUM_DRAFT_TOKENS = 4
_BUDGET_S = 15.0  # every rollout takes as long again
_LEAST_TOKENS, _MAX_TOKENS = 8, 64


def fitting_tokens(calibration: Calibration, num_prompts: int) -> int:
    """Return how long answers may be so that the baseline of a large pair does not take minutes.

    Args:
        calibration: Costs and acceptance of the pair.
        num_prompts: Prompts, which are answered concurrently.
    """

    def seconds(costs: EngineCosts, rows: int) -> float:
        return float(StepCosts(costs.rows, costs.seconds).seconds(rows))

    rate = sum(
        rate * share
        for rate, share in zip(calibration.acceptance_rates, calibration.margin_shares, strict=True)
    )
    round_s = _NUM_DRAFT_TOKENS * seconds(calibration.draft, num_prompts)
    round_s += seconds(calibration.target, num_prompts * (_NUM_DRAFT_TOKENS + 1))
    tokens_per_round = sum(rate**position for position in range(_NUM_DRAFT_TOKENS + 1))
    return min(max(int(_BUDGET_S / round_s * tokens_per_round), _LEAST_TOKENS), _MAX_TOKENS)


def measure_baseline(
    draft: Executor,
    target: Executor,
    prompts: Mapping[str, TokenIds],
    max_tokens: int,
    report: Callable[[str], None] = lambda line: None,
) -> AcceptanceBaseline:
    """Answer prompts greedily with a fixed draft length, and return the acceptance.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of the prompts, by name.
        max_tokens: Longest answer, tokens.
        report: Called with a line about the progress every few seconds.
    """
    answers = answer_prompts(
        draft,
        target,
        list(prompts.values()),
        num_draft_tokens=_NUM_DRAFT_TOKENS,
        max_tokens=max_tokens,
        temperature=0.0,
        report=report,
    )
    counts = answers.statistics
    return AcceptanceBaseline(
        num_draft_tokens=_NUM_DRAFT_TOKENS,
        max_tokens=max_tokens,
        prompts=tuple(BaselinePrompt(name, tuple(ids.tolist())) for name, ids in prompts.items()),
        num_rounds=sum(each.num_rounds for each in counts),
        total_draft_tokens=sum(each.total_draft_tokens for each in counts),
        accepted_per_position=tuple(
            sum(each.accepted_per_position[position] for each in counts)
            for position in range(_NUM_DRAFT_TOKENS)
        ),
    )
