"""Tests of when the draft is probed and when speculation may begin again."""

from __future__ import annotations

from pipelines.speculation.draft_length.probing import Probing


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
    probing.resume()
    rounds(probing, 1)
    assert probing.may_begin
