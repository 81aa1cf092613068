"""Measures a pair's acceptance baseline; ``pipelines/acceptance_baseline.py`` says what it is for."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.calibration.pair_acceptance import answer_prompts
from pipelines.executor.executor import Executor
from pipelines.speculation.token_ids import TokenIds

_NUM_DRAFT_TOKENS = 4
_MAX_TOKENS = 64


def measure_baseline(
    draft: Executor, target: Executor, prompts: Mapping[str, TokenIds]
) -> AcceptanceBaseline:
    """Answer prompts, greedy, with one draft length.

    Args:
        draft: Proposes.
        target: Verifies.
        prompts: Name -> token ids.
    """
    answers = answer_prompts(
        draft,
        target,
        list(prompts.values()),
        num_draft_tokens=_NUM_DRAFT_TOKENS,
        max_tokens=_MAX_TOKENS,
        temperature=0.0,
    )
    counts = answers.statistics
    return AcceptanceBaseline(
        num_draft_tokens=_NUM_DRAFT_TOKENS,
        max_tokens=_MAX_TOKENS,
        prompts=tuple(BaselinePrompt(name, tuple(ids.tolist())) for name, ids in prompts.items()),
        num_rounds=sum(each.num_rounds for each in counts),
        total_draft_tokens=sum(each.total_draft_tokens for each in counts),
        accepted_per_position=tuple(
            sum(each.accepted_per_position[position] for each in counts)
            for position in range(_NUM_DRAFT_TOKENS)
        ),
    )
