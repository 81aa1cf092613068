"""Measure what the steps of a pair's engines cost.

The draft length depends on the relation of these costs, so both engines and all sizes take short turns: what
slows the machine down for a while slows all of them down.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipelines.bench.calibration.step_times import (
    StepTime,
    busy_seconds,
    busy_share,
    has_enough_quiet,
    quiet_seconds,
    time_step,
)
from pipelines.engine_memory import block_bytes
from pipelines.executor.engine import EngineConfig, StepEngine
from pipelines.executor.step import NO_SLOT, Chunk, StepInputs, pack
from pipelines.speculation.draft_length.calibration import EngineCosts
from pipelines.time_left import TimeLeft

_CONTEXT = 64  # cached positions before the rows
# After a long context a step takes measurably longer, also one of one row, and reads from memory: no
# processor's cache holds as much.
_MOST_CONTEXT, _LONG_CONTEXT_BYTES = 8192, 1 << 29
_ROWS_OF_LONG = 9
_REPETITIONS = 2  # steps of the same shape in a turn
# Shapes without a quiet turn get further ones, up to the maximum, while the time lasts.
_PASSES, _MAX_PASSES = 4, 8
_BUDGET_S = 8.0  # after the first step of each shape; one pass is always taken


@dataclass(frozen=True)
class PairCosts:
    """Step costs of both engines.

    Attributes:
        draft: Costs of the draft.
        target: Costs of the target.
        busy_share: Share of the time that threads waited, in the steps that give the costs; see
            ``step_times.busy_share``.
    """

    draft: EngineCosts
    target: EngineCosts
    busy_share: float | None


@dataclass(frozen=True)
class _Shape:
    role: str
    rows: int
    context_len: int


def measure_step_costs(
    draft: StepEngine, target: StepEngine, max_rows: int, report: Callable[[str], None] = lambda line: None
) -> PairCosts:
    """Time steps of one to ``max_rows`` rows.

    If every shape has quiet steps, its cost is the shortest of their durations. Otherwise the CPU time of the
    busiest thread estimates the costs of all shapes.

    Args:
        draft: The draft, with at least ``blocks_needed`` KV blocks, whose content is overwritten.
        target: The target, likewise.
        max_rows: Rows of the largest step that can occur.
        report: Called with a line about the progress every few seconds.
    """
    engines = {"draft": draft, "target": target}
    # Between these sizes the time is nearly linear: OpenVINO's products switch to another blocking after 64,
    # and ours read the weights again after six; serving corrects what is left of the difference.
    max_rows = max(max_rows, 3)  # interpolation needs two sizes
    is_own = all(engine.config.linear == "draftproof" for engine in engines.values())
    turning_points = (1, 2, 4, 6, 7, 9, 16, 32) if is_own else (1, 2, 5, 9, 16, 32, 64, 65)
    sizes = [rows for rows in turning_points if rows < max_rows]
    sizes.append(max_rows)
    shapes = [_Shape(role, rows, _CONTEXT) for rows in sizes for role in engines]
    for role, engine in engines.items():
        shapes.append(_Shape(role, _ROWS_OF_LONG, _CONTEXT))
        shapes += [_Shape(role, rows, _long_context(engine.config)) for rows in (1, _ROWS_OF_LONG)]
    turns = _Turns(engines, list(dict.fromkeys(shapes)))
    turns.take(report)
    costs = {role: turns.costs(role, sizes) for role in engines}
    return PairCosts(costs["draft"], costs["target"], turns.busy_share)


class _Turns:
    """The turns of all shapes, and their times."""

    def __init__(self, engines: Mapping[str, StepEngine], shapes: list[_Shape]) -> None:
        self._engines = engines
        self._steps = {shape: partial(engines[shape.role].step, _inputs(engines, shape)) for shape in shapes}
        self._changed: defaultdict[_Shape, list[StepTime]] = defaultdict(list)  # after another shape
        self._same: defaultdict[_Shape, list[StepTime]] = defaultdict(list)  # after a step of the same shape

    @property
    def busy_share(self) -> float | None:
        steps = [step for same in self._same.values() for step in same]
        return busy_share(step for step in steps if step.was_quiet or not self._is_quiet)

    def take(self, report: Callable[[str], None]) -> None:
        turn_s = self._prepare(report)
        pass_s = sum(turn_s.values())
        ends_s = time.monotonic() + _BUDGET_S
        num_passes = min(max(int(_BUDGET_S // pass_s), 1), _PASSES)
        self._take_turns([*self._steps] * num_passes, turn_s, report, "timing the steps of the pair")
        for _ in range(_MAX_PASSES - num_passes):
            again = [shape for shape in self._steps if not has_enough_quiet(self._same[shape])]
            if sum(turn_s[shape] for shape in again) > ends_s - time.monotonic():
                return
            self._take_turns(again, turn_s, report, "timing steps again that other programs disturbed")

    def _prepare(self, report: Callable[[str], None]) -> dict[_Shape, float]:
        """Take one step of each shape, which also creates its kernels; return about how long a turn takes."""
        num_shapes = len(self._steps)
        progress = TimeLeft(
            num_shapes, report, lambda done: f"preparing to time the pair: {done:.0f} of {num_shapes} steps"
        )
        turn_s = {}
        for shape, step in self._steps.items():
            turn_s[shape] = time_step(step).wall_s * (1 + _REPETITIONS)
            progress.advance(1)
        return turn_s

    def _take_turns(
        self, shapes: list[_Shape], turn_s: Mapping[_Shape, float], report: Callable[[str], None], what: str
    ) -> None:
        total_s = sum(turn_s[shape] for shape in shapes)
        progress = TimeLeft(total_s, report, lambda done_s: f"{what}: {done_s / total_s:.0%}")
        for shape in shapes:
            self._take_turn(shape)
            progress.advance(turn_s[shape])

    def _take_turn(self, shape: _Shape) -> None:
        changed, *same = (time_step(self._steps[shape]) for _ in range(1 + _REPETITIONS))
        self._changed[shape].append(changed)
        self._same[shape].extend(same)

    def costs(self, role: str, sizes: list[int]) -> EngineCosts:
        seconds = {shape: self._seconds(shape) for shape in self._steps if shape.role == role}
        long = _long_context(self._engines[role].config)

        def more_s(rows: int) -> float:
            return seconds[_Shape(role, rows, long)] - seconds[_Shape(role, rows, _CONTEXT)]

        reread_share = _reread_share(more_s(1), more_s(_ROWS_OF_LONG))
        read_by_rows = 1 + reread_share * (_ROWS_OF_LONG - 1)
        per_position_s = max(more_s(_ROWS_OF_LONG), 0.0) / (read_by_rows * max(long - _CONTEXT, 1))
        without_context: list[float] = []
        for rows in reversed(sizes):
            context_s = (1 + reread_share * (rows - 1)) * _CONTEXT * per_position_s
            whole_s = seconds[_Shape(role, rows, _CONTEXT)]
            known_s = max(whole_s - context_s, whole_s / 2)
            # Fewer rows never take longer; a machine whose memory is shared says so now and then.
            without_context.insert(0, min([known_s, *without_context[:1]]))
        changes = [
            (step.wall_s if self._is_quiet else step.busiest_s) - seconds[shape]
            for shape in seconds
            for step in self._changed[shape]
        ]
        change_s = max(statistics.median(changes), 0.0)
        return EngineCosts(tuple(sizes), tuple(without_context), per_position_s, reread_share, change_s)

    @property
    def _is_quiet(self) -> bool:
        return all(has_enough_quiet(steps) for steps in self._same.values())

    def _seconds(self, shape: _Shape) -> float:
        return (quiet_seconds if self._is_quiet else busy_seconds)(self._same[shape])


def _reread_share(one_s: float, all_s: float) -> float:
    """Return ``EngineCosts.reread_share``.

    Args:
        one_s: Time that a long context adds to a step of one row.
        all_s: Time that it adds to a step of ``_ROWS_OF_LONG`` rows of a request.
    """
    if one_s <= 0:  # too short to be measured
        return 1.0
    return min(max((all_s / one_s - 1) / (_ROWS_OF_LONG - 1), 0.0), 1.0)


def blocks_needed(config: EngineConfig, max_rows: int) -> int:
    """Return how many KV blocks ``measure_step_costs`` uses, the reserved one included."""
    num_positions = max(_long_context(config) + _ROWS_OF_LONG, _CONTEXT + max_rows)
    return 1 + -(-num_positions // config.kv_block_size)


def _long_context(config: EngineConfig) -> int:
    token_bytes = block_bytes(
        1, config.num_layers, config.num_kv_heads, config.head_size, config.kv_cache_dtype
    )
    longest = config.max_position_embeddings - _ROWS_OF_LONG
    return max(min(_MOST_CONTEXT, _LONG_CONTEXT_BYTES // token_bytes, longest), _CONTEXT)


def _inputs(engines: Mapping[str, StepEngine], shape: _Shape) -> StepInputs:
    block_size = engines[shape.role].config.kv_block_size
    blocks = range(1, 1 + -(-(shape.context_len + shape.rows) // block_size))
    # Equal tokens would choose the same experts; these choose theirs independently, text somewhat fewer.
    vocab_size = engines[shape.role].config.vocab_size
    token_ids = np.random.default_rng(0).integers(vocab_size, size=shape.rows, dtype=np.int32)
    chunk = Chunk(token_ids, shape.context_len, blocks, as_rows=True, num_logits=shape.rows, slot=NO_SLOT)
    return pack([chunk], block_size)
