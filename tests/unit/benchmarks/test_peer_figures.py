"""Tests of the peers' measurement on scripted engines: arms take turns, and figures follow their formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.peers.figures import ALL_SETS, ArmFigures, Spread, best_lengths, figures_of
from benchmarks.peers.messages import Outcome
from benchmarks.peers.peers import OURS_ADAPTIVE, OURS_ALONE, Arm
from benchmarks.peers.report import conclusion, table
from benchmarks.peers.runners import TokenizedPrompt
from benchmarks.peers.schedule import Measurement, Plan, Schedule, num_requests
from pipelines.errors import PeerError

ALONE, SHORT, LONG = Arm("other", 0), Arm("other", 2), Arm("other", 4)
PROMPTS = tuple(TokenizedPrompt(f"text {index}", (index, index)) for index in range(16))


class ScriptedRunner:
    """A runner that records its name when it is asked, and fails from a given time on."""

    def __init__(self, name: Arm, log: list[tuple[str, int]], fails_at: int = 99) -> None:
        self.name, self.log, self.fails_at, self.num_runs = name, log, fails_at, 0

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        self.num_runs += 1
        if self.num_runs > self.fails_at:
            raise PeerError("it broke")
        self.log.append((str(self.name), num_at_once))
        return Outcome(tuple(prompt.ids for prompt in prompts), (1.0,) * len(prompts), 2.0)


def plan(**changes: object) -> Plan:
    return replace(Plan({"code": PROMPTS}, (1, 4), 8, 2, {}), **changes)  # type: ignore[arg-type]


def test_arms_take_turns_and_each_repetition_begins_with_another() -> None:
    log: list[tuple[str, int]] = []
    arms = (OURS_ALONE, OURS_ADAPTIVE, ALONE)
    schedule = Schedule(plan(), {arm: ScriptedRunner(arm, log) for arm in arms}, lambda entry: None)
    schedule.run()
    a, b, c = map(str, arms)
    assert [name for name, num_at_once in log if num_at_once == 4] == [a, b, c, a, b, c, b, c, a]
    assert len(schedule.measurements) == 2 * 2 * 3  # without the first, which warms up
    assert {len(entry.answers) for entry in schedule.measurements} == {num_requests(1), num_requests(4)}


def test_an_engine_is_asked_for_no_more_at_once_than_it_takes() -> None:
    log: list[tuple[str, int]] = []
    runners = {arm: ScriptedRunner(arm, log) for arm in (OURS_ALONE, OURS_ADAPTIVE, ALONE)}
    Schedule(plan(max_concurrency={"other": 1}), runners, lambda entry: None).run()
    assert {num_at_once for name, num_at_once in log if name.startswith("other")} == {1}
    assert {num_at_once for name, num_at_once in log if name.startswith("draftproof")} == {1, 4}


def test_a_peer_that_breaks_is_left_out_with_its_reason_and_the_others_go_on() -> None:
    log: list[tuple[str, int]] = []
    runners = {arm: ScriptedRunner(arm, log) for arm in (OURS_ALONE, OURS_ADAPTIVE, ALONE)}
    runners[SHORT] = ScriptedRunner(SHORT, log, fails_at=2)
    schedule = Schedule(plan(concurrency=(1,)), runners, lambda entry: None)
    schedule.run()
    assert schedule.failures == {SHORT: "it broke"}
    assert [entry.repetition for entry in schedule.measurements if entry.arm == SHORT] == [0]
    assert [entry.repetition for entry in schedule.measurements if entry.arm == ALONE] == [0, 1]
    shown = conclusion(figures_of(schedule.measurements), {"other K=2": "it broke"})
    assert "NOT MEASURED: other K=2: it broke" in shown


def test_our_own_server_may_not_break() -> None:
    runners = {OURS_ALONE: ScriptedRunner(OURS_ALONE, [], fails_at=1)}
    with pytest.raises(PeerError, match="it broke"):
        Schedule(plan(), runners, lambda entry: None).run()


def measured(
    arm: Arm, repetition: int, wall_s: float, *answers: tuple[int, ...], kind: str = "code"
) -> Measurement:
    return Measurement(arm, kind, 1, repetition, answers or ((1, 2), (3, 4)), wall_s)


def figures_by_arm(*measurements: Measurement) -> dict[tuple[Arm, str], ArmFigures]:
    return {(entry.arm, entry.prompt_set): entry for entry in figures_of(measurements)}


def test_ratios_are_taken_within_a_repetition() -> None:
    found = figures_by_arm(
        *(measured(OURS_ALONE, index, 1.0) for index in range(3)),
        *(measured(OURS_ADAPTIVE, index, wall_s) for index, wall_s in enumerate((0.5, 1.0, 2.0))),
        *(measured(ALONE, index, wall_s) for index, wall_s in enumerate((2.0, 4.0, 1.0))),
        *(measured(SHORT, index, wall_s) for index, wall_s in enumerate((1.0, 1.0, 2.0))),
    )
    short = found[SHORT, "code"]
    assert short.output_tokens_per_s == Spread(4.0, 2.0, 4.0)
    assert short.ratio_to_alone == Spread(2.0, 0.5, 4.0)
    assert short.ours_to_this == Spread(1.0, 1.0, 2.0)
    assert found[OURS_ADAPTIVE, "code"].ours_to_this == Spread(1.0, 1.0, 1.0)
    assert found[OURS_ADAPTIVE, "code"].ratio_to_alone == Spread(1.0, 0.5, 2.0)


def test_answers_that_differ_are_counted_against_the_engines_own_target() -> None:
    found = figures_by_arm(
        measured(OURS_ALONE, 0, 1.0),
        measured(OURS_ADAPTIVE, 0, 1.0),
        measured(ALONE, 0, 1.0, (1, 9), (3, 4)),
        measured(SHORT, 0, 1.0, (1, 9), (3, 5)),
        measured(ALONE, 1, 1.0, (1, 9), (3, 4)),
        measured(SHORT, 1, 1.0, (1, 9), (3,)),
        measured(OURS_ALONE, 1, 1.0),
        measured(OURS_ADAPTIVE, 1, 1.0),
    )
    short, alone = found[SHORT, "code"], found[ALONE, "code"]
    assert (short.num_answers, short.num_different, short.num_unsteady) == (4, 2, 1)
    assert (alone.num_different, alone.num_unsteady, alone.same_as_ours) == (0, 0, 0.75)
    assert short.same_as_ours == 0.5  # 1, 3 and 1, 3 of eight tokens


def test_all_sets_together_weigh_by_time() -> None:
    found = figures_by_arm(
        *(
            measured(arm, 0, wall_s, kind=kind)
            for arm, walls in ((OURS_ALONE, (1.0, 1.0)), (OURS_ADAPTIVE, (0.5, 1.5)), (ALONE, (3.0, 1.0)))
            for kind, wall_s in zip(("code", "mixed"), walls, strict=True)
        ),
        measured(SHORT, 0, 1.0, kind="code"),  # failed before the other set
    )
    assert found[ALONE, ALL_SETS].output_tokens_per_s.median == 8 / 4.0
    assert found[ALONE, ALL_SETS].ours_to_this.median == 2.0
    assert (SHORT, ALL_SETS) not in found


def test_the_best_draft_length_of_a_peer_is_that_of_the_highest_rate() -> None:
    entries = [measured(arm, 0, 1.0) for arm in (OURS_ALONE, OURS_ADAPTIVE, ALONE)]
    figures = figures_of([*entries, measured(SHORT, 0, 2.0), measured(LONG, 0, 0.5)])
    assert [entry.arm for entry in best_lengths(figures)] == [LONG]
    assert "ours is 0.50 [0.50..0.50] times as fast as other K=4" in conclusion(figures, {})
    assert len(table(figures).splitlines()) == 2 + 5
