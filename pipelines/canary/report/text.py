"""Show a rollout on a terminal: each change of its phase, its status, and its report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from pipelines.bench.reporting.section import Table
from pipelines.canary.controller.control import Cycle
from pipelines.canary.report.record import PROMOTING, Judgement, RolloutRecord, Transition

_MOST_DIVERGENCES = 20
_EXPECTED_OF = {"stable": "stable", "own_target": "the candidate's target alone", "itself": "its chunks"}


def show_cycle(cycle: Cycle) -> None:
    """Write a cycle's change of phase to standard error, if there is one."""
    if cycle.transition is not None:
        print(_transition(cycle.transition), file=sys.stderr, flush=True)


def status_lines(record: RolloutRecord, judged: Judgement) -> Iterator[str]:
    """Describe a rollout from its state file."""
    rollout = record.rollout
    yield f"{rollout.recipe_candidate} against {rollout.recipe_stable} ({rollout.canary_id}): {record.phase}"
    yield from map(_transition, record.transitions)
    yield f"{judged.verdict}: {judged.reason.removeprefix(f'{judged.verdict}: ')}"


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """Describe a report.

    Args:
        report: As ``report_of`` returns it.
    """
    evidence = report["evidence"]
    if evidence["losses"]:
        yield from _titled("Candidate compared with the stable pair")
        yield from _metrics(evidence["losses"])
        unset = [name for name, value in evidence["limits"].items() if value is None]
        if not_judged := [name for name in unset if name != "answers_repeated"]:
            yield f"Not judged, because the limits leave it out: {', '.join(not_judged)}."
    yield from _titled("Figures of each arm (times: p50/p90/p99 of requests of clients)")
    yield from _arms(report["arms"])
    if report["faults"]:
        yield from _titled("What went wrong")
        for each in report["faults"]:
            yield f"{each['arm']}: {each['fault']}, {each['number']} {each['of']}"
    if report["divergences"]:
        yield from _titled(f"The first of {len(report['divergences'])} answers that differ")
        for number, found in enumerate(report["divergences"][:_MOST_DIVERGENCES], 1):
            yield from _divergence(number, found)


def _transition(transition: Transition) -> str:
    at = datetime.fromtimestamp(transition.at_s, timezone.utc).strftime("%H:%M:%S")
    share = 1.0 if transition.to_phase in PROMOTING else transition.weights.get("candidate", 0.0)
    return f"{at}  {transition.to_phase:<13} {share:>6.1%}  {transition.reason}"


def _titled(title: str) -> Iterator[str]:
    yield from ("", title, "-" * len(title))


def _table(records: Sequence[dict[str, object]]) -> list[str]:
    table = Table.of(records)
    return table.lines() if table else []


def _metrics(losses: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from _table(
        [
            {
                "metric": each["loss"],
                "verdict": "needs review" if each["is_held"] else each["verdict"],
                "trials": each["trials"],
                "observed": _percent(each["estimate"]),
                "between": f"{_percent(each['low'])} to {_percent(each['high'])}",
                "passes below": _percent(each["pass_below"]),
                "fails above": "any" if each["rollback_above"] is None else _percent(each["rollback_above"]),
            }
            for each in losses
        ]
    )
    yield from (f"{each['loss']}: {each['detail']}" for each in losses if each["detail"])


def _arms(arms: dict[str, dict[str, Any]]) -> list[str]:
    names = next(iter(arms.values()))
    return _table(
        [{"figure": name, **{arm: _shown(figures[name]) for arm, figures in arms.items()}} for name in names]
    )


def _shown(figure: Any) -> object:
    if isinstance(figure, list):  # percentiles
        return "/".join("-" if each is None else f"{each:.1f}" for each in figure)
    return figure


def _divergence(number: int, found: dict[str, Any]) -> Iterator[str]:
    in_tokens = found["differs_in"] == "tokens"
    differs = f"from token {found['first_difference']} on" if in_tokens else found["differs_in"]
    yield f"{number}. {differs}; prompt: {found['prompt']!r}"
    for name, key in ((_EXPECTED_OF[found["expected_of"]], "expected"), ("candidate", "candidate")):
        value = f" ({found[key]})" if found[key] else ""
        yield f"   {name}{value}: {found[f'{key}_text']!r}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.2%}"
