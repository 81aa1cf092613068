"""Time the steps of a pair, and its answers at stated acceptance rates beside the target alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rehearsal.loaded_pair import Answer, LoadedPair
from pipelines.bench.calibration.step_times import StepTime, busy_share, time_step
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step import Chunk, pack
from pipelines.speculation.token_ids import Logits

ROWS = (1, 2, 5, 9)
RATES = (0.6, 0.75, 0.9)
CONTEXT_TOKENS = 64
LIMITS = ExecutorLimits(
    max_batch_size=1, max_num_tokens=512, max_seq_len=512, max_queue_size=1, num_kv_blocks=64
)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, smallest and largest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def time_steps(pair: LoadedPair, num_turns: int) -> dict[str, Any]:
    """Time steps of both engines with each number of rows, in turn.

    Returns:
        Milliseconds by role and number of rows, and ``busy_share``: the share of their time that the threads
        waited for a core.
    """
    steps: dict[tuple[str, int], partial[Logits]] = {}
    for role, engine in pair.engines.items():
        for rows in ROWS:
            ids = np.arange(1, rows + 1, dtype=np.int32)
            blocks = tuple(range(1, 5))
            chunk = Chunk(ids, CONTEXT_TOKENS, blocks, as_rows=True, num_logits=rows)
            inputs = pack([chunk], engine.config.kv_block_size)
            steps[role, rows] = partial(engine.step, inputs)
    found: dict[tuple[str, int], list[StepTime]] = {each: [] for each in steps}
    for _ in range(num_turns):
        for each, step in steps.items():
            step()  # a step after another shape takes longer
            found[each].append(time_step(step))
    milliseconds: dict[str, Any] = {
        role: {rows: spread([1e3 * step.wall_s for step in found[role, rows]]) for rows in ROWS}
        for role in pair.engines
    }
    return {**milliseconds, "busy_share": busy_share(step for each in found.values() for step in each)}


def time_answers(
    pair: LoadedPair, num_turns: int, num_tokens: int, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Answer prompts by the target alone and at each acceptance rate, in turn.

    Args:
        pair: The pair, started.
        num_turns: Prompts.
        num_tokens: Tokens of each answer.
        report: Called with a line for each prompt.

    Returns:
        An entry for the target alone, then one for each rate, with milliseconds per token, speed-up beside
        the target alone in the same turn, and what was accepted.
    """
    rng = np.random.default_rng(0)
    answers: dict[float | None, list[Answer]] = {None: [], **{rate: [] for rate in RATES}}
    for turn in range(num_turns):
        prompt = rng.integers(1, pair.engines["target"].config.vocab_size, CONTEXT_TOKENS).astype(np.int32)
        expected = pair.alone(prompt, num_tokens)
        answers[None].append(expected)
        for rate in RATES:
            answers[rate].append(pair.steered(prompt, expected, rate, seed=turn))
        paces = {rate: 1e3 * found[-1].seconds_per_token for rate, found in answers.items()}
        report(", ".join(f"{rate or 'alone'}: {pace:.0f} ms per token" for rate, pace in paces.items()))
    return [_entry(rate, found, answers[None]) for rate, found in answers.items()]


def _entry(rate: float | None, found: Sequence[Answer], alone: Sequence[Answer]) -> dict[str, Any]:
    counts = ("num_drafted", "num_accepted", "num_rejected", "num_rounds")
    pairs = zip(alone, found, strict=True)
    return {
        "rate": rate,
        "ms_per_token": spread([1e3 * answer.seconds_per_token for answer in found]),
        "speed_up": spread([before.seconds_per_token / after.seconds_per_token for before, after in pairs]),
        **{name: sum(getattr(answer, name) for answer in found) for name in counts},
        "num_tokens": sum(len(answer.token_ids) for answer in found),
    }
