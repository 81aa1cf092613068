"""A rollout in the terminal: rewritten in place there, and a line for each phase elsewhere."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import TextIO

from pipelines.canary.analysis.verdict import Analysis, Judged
from pipelines.canary.controller import Look
from pipelines.canary.record import PROMOTING, Judgement, RolloutRecord, Transition

_REDRAW_S = 5.0  # bounds of all losses take a tenth of a second and more
_WIDTH = 110
_FOR_A_PERSON = "It waits for: python -m pipelines.canary resume, promote or abort"


def progress_lines(look: Look) -> Iterator[str]:
    """Where a rollout stands and every loss, for a terminal."""
    rollout, position = look.rollout, look.position
    since_s = max(0.0, time.time() - position.since_s)
    phase = f"paused in {position.paused_in}" if position.paused_in else position.phase
    yield f"{rollout.recipe_candidate} beside {rollout.recipe_stable}: {phase} for {since_s:.0f} s"
    if position.pause_reason:
        yield from textwrap.wrap(f"{position.pause_reason}. {_FOR_A_PERSON}", _WIDTH)
    requests = Counter(each.arm for each in look.requests if not each.is_replay)
    replays = sum(each.is_replay for each in look.requests)
    answered = ", ".join(f"{arm} {requests[arm]}" for arm in ("stable", "candidate", "control"))
    pairs = f"{look.num_pairs.asked}, {look.num_pairs.replayed} of replays"
    yield f"requests: {answered}; replays: {replays}; pairs: {pairs}"
    if look.analysis is not None:
        yield from _losses(look.analysis)


def transition_line(transition: Transition) -> str:
    """A change of phase."""
    at = datetime.fromtimestamp(transition.at_s, timezone.utc).strftime("%H:%M:%S")
    share = 1.0 if transition.to_phase in PROMOTING else transition.weights.get("candidate", 0.0)
    return f"{at}  {transition.to_phase:<13} {share:>6.1%}  {transition.reason}"


def record_lines(record: RolloutRecord, judged: Judgement) -> Iterator[str]:
    """A rollout from its state file."""
    yield f"{record.recipe_candidate} beside {record.recipe_stable} ({record.canary_id}): {record.phase}"
    yield from map(transition_line, record.transitions)
    more = "" if not judged.still_needed else f"; about {judged.still_needed} more requests would decide"
    said = judged.reason.removeprefix(f"{judged.verdict}: ")
    yield f"{judged.verdict}: {said}{more}"


class LiveView:
    """Shows looks.

    Args:
        out: Where to write.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._num_lines = 0
        self._drawn_at_s = 0.0

    def show(self, look: Look) -> None:
        """Write a new phase, and on a terminal where the rollout stands."""
        now_s = time.monotonic()
        if look.transition is not None:
            self._clear()
            self._write([transition_line(look.transition)])
        elif not self._is_terminal or now_s - self._drawn_at_s < _REDRAW_S:
            return
        if self._is_terminal:
            self._clear()
            lines = [line[:_WIDTH] for line in progress_lines(look)]
            self._write(lines)
            self._num_lines, self._drawn_at_s = len(lines), now_s

    def _clear(self) -> None:
        if self._num_lines:
            self._out.write(f"\x1b[{self._num_lines}F\x1b[J")
        self._num_lines = 0

    def _write(self, lines: Iterable[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()


def _losses(analysis: Analysis) -> Iterator[str]:
    yield f"{'loss':<20} {'trials':>6} {'seen':>8}  {'between':<20} {'passes':>8} {'fails':>8}  verdict"
    for each in analysis.judged:
        yield _loss(each)
    needed = analysis.still_needed
    more = "no number of requests would decide" if needed is None else f"about {needed} more would decide"
    yield f"{analysis.verdict}" + (f"; {more}" if analysis.verdict == "inconclusive" else "")


def _loss(each: Judged) -> str:
    bounds, limit = each.bounds, each.metric.limit
    seen = "-" if bounds.estimate is None else f"{bounds.estimate:+.2%}"
    fails = "any" if each.metric.is_exact else f"{limit.rollback_above:+.1%}"
    word = "held" if each.is_held else each.verdict
    between = f"{bounds.low:+.2%} to {bounds.high:+.2%}"
    return (
        f"{each.metric.name:<20} {bounds.num:>6} {seen:>8}  {between:<20} "
        f"{limit.pass_below:>+8.1%} {fails:>8}  {word}"
    )
