"""Tests of when the draft is probed and when speculation may begin again."""

from __future__ import annotations

from pipelines.speculation.draft_length.probing import Probing
from pipelines.speculation.draft_length.step_costs import load_class


def rounds(
    probing: Probing, count: int, *, is_right: bool = False, is_trying: bool = False, gain: float = 0.0
) -> int:
    """Play rounds of eight requests; return the number of probes."""
    num_probes = 0
    for _ in range(count):
        probing.begin_round(is_trying=is_trying, gain=gain)
        if is_trying:
            continue
        for number in range(8):
            if probing.is_turn_of(number, 8):
                num_probes += 1
                probing.note(was_right=is_right)
    return num_probes


def pause(probing: Probing) -> int:
    count = 0
    while not probing.may_begin:
        rounds(probing, 1)
        count += 1
    return count


def test_a_draft_that_is_right_and_does_not_pay_is_probed_seldom() -> None:
    """Two of eight requests are probed at a time, and for eight rounds all of them; then there is a pause."""
    probing = Probing()
    assert rounds(probing, 16 + 8 + 20, is_right=True) == 2 + 8 * 8
    assert not probing.may_begin
    assert rounds(probing, 2000, is_right=True) < 500


def test_the_pause_doubles_each_time_speculation_did_not_pay() -> None:
    probing = Probing()
    pauses = []
    for _ in range(6):
        rounds(probing, 6, is_trying=True, gain=0.05)
        rounds(probing, 1)
        pauses.append(1 + pause(probing))
    assert pauses == [32, 64, 128, 256, 512, 512]


def test_speculation_that_paid_may_begin_again_at_once() -> None:
    probing = Probing()
    rounds(probing, 6, is_trying=True, gain=0.05)
    rounds(probing, 1)
    pause(probing)
    rounds(probing, 25, is_trying=True, gain=0.05)
    rounds(probing, 1)
    assert probing.may_begin


def test_speculation_that_ended_at_another_load_did_not_fail_at_this_one() -> None:
    probing = Probing()
    rounds(probing, 6, is_trying=True, gain=0.05)
    probing.forget_round()
    rounds(probing, 1)
    assert probing.may_begin


def test_a_gain_that_was_an_error_was_no_gain() -> None:
    """Speculation was expected to pay for long; then the target alone was measured, and is faster."""
    probing = Probing()
    rounds(probing, 100, is_trying=True, gain=0.05)
    probing.note_error()
    rounds(probing, 1)
    assert not probing.may_begin


def test_the_first_request_after_a_quiet_moment_is_tried_at_once() -> None:
    probing = Probing()
    for _ in range(5):
        rounds(probing, 6, is_trying=True, gain=0.0)
        rounds(probing, 1)
    assert not probing.may_begin
    probing.note_idle()
    assert probing.may_begin
    assert rounds(probing, 64) >= 2 * 3, "a probe in every sixteenth round again"


def test_usual_loads_lie_inside_of_their_classes() -> None:
    classes = [load_class(num_requests) for num_requests in range(1, 23)]
    assert classes == [1, 2, 3, 3, 3, *[4] * 5, *[5] * 11, 6]
