"""Counts answers over many seeds on all cores; the counts do not depend on the number of cores."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.statistical.outcomes import Counter, Counts
from tests.statistical.tables import Pair, answers

_CHUNK = 5_000


def count(pair: Pair, use_draft_logits: bool, seeds: range) -> Counts:
    """Answer the request of ``pair`` with every seed, in this process."""
    counter = Counter(pair, use_draft_logits)
    answers(pair, use_draft_logits, seeds, counter.take)
    return counter.counts


def count_on_all_cores(pair: Pair, use_draft_logits: bool, num_samples: int) -> Counts:
    """``count`` for seeds 0 to ``num_samples`` - 1."""
    chunks = [range(begin, min(begin + _CHUNK, num_samples)) for begin in range(0, num_samples, _CHUNK)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        parts = list(pool.map(count, repeat(pair), repeat(use_draft_logits), chunks))
    total = parts[0]
    for part in parts[1:]:
        total.cells += part.cells
        for stratum, totals in part.acceptance.strata.items():
            total.acceptance.add(stratum, totals)
    return total
