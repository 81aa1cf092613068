"""Show a running rollout on a terminal, updated in place, or else one line per phase."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TextIO

from pipelines.canary.controller.control import Cycle
from pipelines.canary.judge.verdict import Analysis, Judged
from pipelines.canary.report.record import PROMOTING, Judgement, RolloutRecord, Transition

_REDRAW_S = 5.0  # computing the bounds of all metrics takes 0.1 s and more
_WIDTH = 110


def progress_lines(cycle: Cycle, chosen_by: Sequence[str]) -> Iterator[str]:
    """Describe the current phase and every metric for a terminal.

    Args:
        cycle: Latest cycle.
        chosen_by: Options with which the commands for the rollout find it.
    """
    rollout, position = cycle.rollout, cycle.position
    since_s = max(0.0, time.time() - position.since_s)
    phase = f"paused in {position.paused_in}" if position.paused_in else position.phase
    yield f"{rollout.recipe_candidate} against {rollout.recipe_stable}: {phase} for {since_s:.0f} s"
    if position.pause_reason:
        yield from textwrap.wrap(position.pause_reason, _WIDTH)
        orders = f"python -m pipelines.canary resume {shlex.join(chosen_by)}, or promote or abort instead"
        yield from textwrap.wrap(f"To decide: {orders}", _WIDTH, break_on_hyphens=False)
    requests = Counter(each.arm for each in cycle.requests if not each.is_replay)
    replays = sum(each.is_replay for each in cycle.requests)
    answered = ", ".join(f"{arm} {requests[arm]}" for arm in ("stable", "candidate", "control"))
    pairs = f"{cycle.num_pairs.asked}, {cycle.num_pairs.replayed} of replays"
    yield f"requests: {answered}; replays: {replays}; pairs: {pairs}"
    if cycle.not_sampled:
        yield f"memory and CPU time are unknown: {cycle.not_sampled}"
    if cycle.analysis is not None:
        yield from _metric_lines(cycle.analysis)


def transition_line(transition: Transition) -> str:
    """Describe a change of phase in one line."""
    at = datetime.fromtimestamp(transition.at_s, timezone.utc).strftime("%H:%M:%S")
    share = 1.0 if transition.to_phase in PROMOTING else transition.weights.get("candidate", 0.0)
    return f"{at}  {transition.to_phase:<13} {share:>6.1%}  {transition.reason}"


def record_lines(record: RolloutRecord, judged: Judgement) -> Iterator[str]:
    """Describe a rollout from its state file."""
    yield f"{record.recipe_candidate} against {record.recipe_stable} ({record.canary_id}): {record.phase}"
    yield from map(transition_line, record.transitions)
    more = "" if not judged.still_needed else f"; about {judged.still_needed} more requests would decide"
    said = judged.reason.removeprefix(f"{judged.verdict}: ")
    yield f"{judged.verdict}: {said}{more}"


class LiveView:
    """Shows each cycle.

    Args:
        out: Stream to write to.
        chosen_by: Options with which the commands for the rollout find it, such as ``--recipe demo``.
    """

    def __init__(self, out: TextIO, chosen_by: Sequence[str]) -> None:
        self._out = out
        self._chosen_by = chosen_by
        self._is_terminal = out.isatty()
        self._num_lines = 0
        self._drawn_at_s = 0.0

    def show(self, cycle: Cycle) -> None:
        """Write a change of phase and, on a terminal, the current state."""
        now_s = time.monotonic()
        if cycle.transition is not None:
            self._clear()
            self._write([transition_line(cycle.transition)])
        elif not self._is_terminal or now_s - self._drawn_at_s < _REDRAW_S:
            return
        if self._is_terminal:
            self._clear()
            lines = [line[:_WIDTH] for line in progress_lines(cycle, self._chosen_by)]
            self._write(lines)
            self._num_lines, self._drawn_at_s = len(lines), now_s

    def _clear(self) -> None:
        if self._num_lines:
            self._out.write(f"\x1b[{self._num_lines}F\x1b[J")
        self._num_lines = 0

    def _write(self, lines: Iterable[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()


def _metric_lines(analysis: Analysis) -> Iterator[str]:
    yield f"{'metric':<20} {'trials':>6} {'observed':>8}  {'between':<20} {'passes':>8} {'fails':>8}  verdict"
    for each in analysis.judged:
        yield _metric_line(each)
    needed = analysis.still_needed
    more = (
        "no number of further requests would decide"
        if needed is None
        else f"about {needed} more would decide"
    )
    yield f"{analysis.verdict}" + (f"; {more}" if analysis.verdict == "inconclusive" else "")


def _metric_line(each: Judged) -> str:
    bounds, limit = each.bounds, each.metric.limit
    seen = "-" if bounds.estimate is None else f"{bounds.estimate:+.2%}"
    fails = "any" if each.metric.is_exact else f"{limit.rollback_above:+.1%}"
    between = f"{bounds.low:+.2%} to {bounds.high:+.2%}"
    return (
        f"{each.metric.name:<20} {bounds.num:>6} {seen:>8}  {between:<20} "
        f"{limit.pass_below:>+8.1%} {fails:>8}  {each.word}"
    )
