"""Draws the phases of a rollout from the code that decides them.

``decide`` is asked what follows each phase, with every combination of facts that matters to it. Only the
places of boxes and lines are chosen by hand: drawing fails when ``decide`` gives other arrows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from docs.pictures import svg
from pipelines.canary.controller.facts import Facts, Judged, Order, Outcome
from pipelines.canary.controller.phases import ENDED, Position, decide
from pipelines.canary.controller.plan import Plan, read_plan

_PLACES = {
    "preflight": (20, 70),
    "loading": (145, 70),
    "cold_start": (270, 70),
    "shadow": (405, 70),
    "step/1": (525, 70),
    "step/2": (645, 70),
    "step/3": (765, 70),
    "promoting": (765, 180),
    "settling": (765, 270),
    "promoted": (765, 360),
    "paused": (405, 180),
    "rolling_back": (405, 270),
    "rolled_back": (325, 360),
    "aborted": (485, 360),
}
_WIDTH, _HEIGHT = 105, 40
_JUDGED = ("shadow", "step/1", "step/2", "step/3")
_ROUTES = {
    ("preflight", "loading"): "M125 90 H145",
    ("loading", "cold_start"): "M250 90 H270",
    ("cold_start", "judged"): "M375 90 H393",
    ("judged", "promoting"): "M817 120 V180",
    ("promoting", "settling"): "M817 220 V270",
    ("settling", "promoted"): "M817 310 V360",
    ("preflight", "rolled_back"): "M52 110 V380 H325",
    ("preflight", "rolling_back"): "M92 110 V290 H405",
    ("loading", "rolling_back"): "M197 110 V290 H405",
    ("cold_start", "rolling_back"): "M302 110 V290 H405",
    ("cold_start", "paused"): "M342 110 V200 H405",
    ("judged", "paused"): "M440 120 V180",
    ("paused", "judged"): "M475 180 V120",
    ("paused", "promoting"): "M510 200 H765",
    ("paused", "rolling_back"): "M457 220 V270",
    ("judged", "rolling_back"): "M577 120 V280 H510",
    ("promoting", "rolling_back"): "M765 212 H735 V300 H510",
    ("rolling_back", "rolled_back"): "M440 310 V335 H377 V360",
    ("rolling_back", "aborted"): "M475 310 V335 H537 V360",
}
_LATE_S = 1e9
_ORDERS: tuple[Order | None, ...] = (None, "pause", "resume", "promote", "abort")


def transitions(plan: Plan) -> set[tuple[str, str, str]]:
    """Return each pair of phases of which the second follows the first, and what it takes.

    Args:
        plan: The plan of the rollout.
    """
    found: set[tuple[str, str, str]] = set()
    for phase in _PLACES:
        paused_in = ("cold_start", "shadow", "step/1", "step/2", "step/3") if phase == "paused" else ("",)
        for inside, order, facts, is_abort in itertools.product(
            paused_in, _ORDERS, _facts(phase), (False, True)
        ):
            position = Position(phase, 0.0, paused_in=inside, is_abort=is_abort)
            following = decide(position, replace(facts, order=order), plan).position.phase
            if following != phase:
                found.add((phase, following, order or "evidence"))
    return found


def _facts(phase: str) -> Iterator[Facts]:
    outcomes = [None, Outcome(True, "good"), Outcome(False, "bad")]
    if phase == "cold_start":  # no other phase asks a person
        outcomes.append(Outcome(False, "unclear", {}, True))
    judged = (
        None,
        Judged("fail", "roll_back", "bad"),
        Judged("pass", "promote", "good", False),
        Judged("inconclusive", "go_on", "unclear", False),
    )
    for outcome, judgement, down_s in itertools.product(outcomes, judged, (0.0, _LATE_S)):
        yield Facts(_LATE_S, None, outcome, judgement, num_pairs=10_000, num_replays=10_000, down_s=down_s)


def rollout_phases() -> str:
    """Return the picture for the plan that comes with Draftproof.

    Raises:
        KeyError: The code knows a phase or an arrow that has no place here, or has one no more.
    """
    plan = read_plan()
    found = {(_group(before), _group(after)) for before, after, _ in transitions(plan)} - {
        ("judged", "judged")
    }
    if found != set(_ROUTES):
        raise KeyError(f"arrows that differ from the code's: {sorted(found ^ set(_ROUTES))}")
    parts = [svg.text(20, 34, "Phases of a rollout", "bold"), svg.box(393, 44, 489, 76, "judged")]
    parts.append(svg.text(638, 60, "judged by evidence, each step with more requests", "small dim middle"))
    steps = [_PLACES[name][0] for name in _JUDGED]
    parts += [svg.arrow(f"M{x + _WIDTH} 90 H{following}") for x, following in itertools.pairwise(steps)]
    parts += [svg.arrow(path, "dashed" if "paused" in pair else "") for pair, path in _ROUTES.items()]
    parts += [_box(name) for name in _PLACES]
    parts.append(svg.text(524, 194, "promote", "small dim"))
    parts.append(
        svg.text(
            20,
            432,
            "Dashed: an operator pauses, resumes, promotes; an unclear cold start waits.",
            "small dim",
        )
    )
    weights = ", ".join(f"{step.weight:.0%}" for step in plan.steps)
    parts.append(svg.text(20, 452, f"Share of the requests in the steps: {weights}.", "small dim"))
    style = (
        ".dashed { stroke-dasharray: 5 4; } "
        ".judged { fill: none; stroke: var(--line); stroke-dasharray: 2 3; } "
        ".good { fill: var(--accepted-back); stroke: var(--accepted); }"
    )
    title = "State machine of a rollout: " + "; ".join(f"{before} to {after}" for before, after in _ROUTES)
    return svg.picture(892, 468, title, parts, style)


def _group(phase: str) -> str:
    return "judged" if phase in _JUDGED else phase


def _box(name: str) -> str:
    x, y = _PLACES[name]
    kind = "panel good" if name == "promoted" else "panel"
    classes = "small middle bold" if name in ENDED else "small middle"
    return svg.box(x, y, _WIDTH, _HEIGHT, kind) + svg.text(x + _WIDTH / 2, y + 25, name, classes)
