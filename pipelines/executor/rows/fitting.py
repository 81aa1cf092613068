"""Fits a step to its row budget: keeps the draft tokens that are most likely to become output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipelines.executor.lane import Work
from pipelines.executor.rows.budget import NOTHING, RowBudget, Worths


def fit_to_budget(work: Sequence[Work], budget: RowBudget) -> tuple[list[Work], int]:
    """Drop the draft tokens that are not worth their row.

    Only tokens with a ``draft_survival`` can be dropped, and dropping them never changes an output.

    Args:
        work: The planned step.
        budget: Row budget of the engine.

    Returns:
        The step, and the number of rows to compute if it has no prompts; dummy rows fill it up.
    """
    is_rows_only = all(item.chunk.as_rows for item in work)
    num_planned = sum(len(item.chunk.token_ids) for item in work)
    choose = budget.rows if is_rows_only else budget.rows_beside_prompts
    if all(item.sequence.draft_survival is None for item in work):
        return list(work), choose(num_planned, NOTHING)
    worths = [_worths(item, budget) for item in work]
    flat = np.concatenate(worths)
    order = np.argsort(-flat, kind="stable")
    num_needed = num_planned - len(flat)
    num_rows = choose(num_needed, flat[order])
    owners = np.repeat(np.arange(len(work)), [len(part) for part in worths])
    # Worths decrease within a request and the sort is stable, so a prefix of each draft is kept.
    kept = order[: num_rows - num_needed]
    counts = np.bincount(owners[kept[flat[kept] > 0]], minlength=len(work)).tolist()
    fitted = [_keep(*part) for part in zip(work, worths, counts, strict=True)]
    return fitted, num_rows


def _worths(item: Work, budget: RowBudget) -> Worths:
    """Return the expected output of each draft token minus the cost of its context, float64 [n]."""
    survival = item.sequence.draft_survival
    if survival is None or not item.chunk.num_logits:
        return NOTHING
    return survival - budget.price_of_context(item.sequence.num_tokens)


def _keep(item: Work, worths: Worths, count: int) -> Work:
    num_left_out = len(worths) - count
    if not num_left_out:
        return item
    chunk = item.chunk
    item.sequence.leave_out(num_left_out)
    fitted = replace(
        chunk, token_ids=chunk.token_ids[:-num_left_out], num_logits=chunk.num_logits - num_left_out
    )
    return replace(item, chunk=fitted)
