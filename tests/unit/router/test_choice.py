"""Tests of the choice of arms: by weight, stable for each key, with the order of fallbacks."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.router.arms import Arm
from pipelines.router.choice import choose, chosen_by_client, fallback_order, point, skipped_arms

KEYS = [f"session-{number}" for number in range(20_000)]
STEPS = (0.0, 0.01, 0.1, 0.5, 1.0)


def test_points_are_even_in_every_tenth() -> None:
    found = Counter(int(10 * point("pepper", key, "arm")) for key in KEYS)
    assert sorted(found) == list(range(10))
    # chi-square, 9 degrees of freedom, p = 0.001
    assert sum((num - 2000) ** 2 / 2000 for num in found.values()) < 27.9


def test_salts_and_purposes_deal_anew() -> None:
    for salts, purposes in ((("a", "b"), ("arm", "arm")), (("a", "a"), ("arm", "shadow"))):
        both = Counter(
            tuple(point(salt, key, purpose) < 0.5 for salt, purpose in zip(salts, purposes, strict=True))
            for key in KEYS
        )
        assert all(abs(num - 5000) < 300 for num in both.values()), both
    assert [choose(0.5, "a", key) for key in KEYS] == [choose(0.5, "a", key) for key in KEYS]


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(STEPS)))
def test_a_growing_share_keeps_its_sessions(before: float, after: float) -> None:
    moves = Counter((choose(before, "pepper", key), choose(after, "pepper", key)) for key in KEYS)
    assert {origin for (origin, goal) in moves if origin != goal} <= {"stable"}


@given(st.text(), st.text())
def test_the_whole_weight_takes_every_key(salt: str, key: str) -> None:
    assert (choose(0.0, salt, key), choose(1.0, salt, key)) == ("stable", "candidate")


def test_no_digest_is_rounded_up_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def digest(self) -> bytes:
            return b"\xff" * 8

    monkeypatch.setattr("hashlib.blake2b", lambda *args, **options: Full())
    assert point("", "", "") < 1
    assert choose(1.0, "", "") == "candidate"


def test_the_choice_is_part_of_what_a_rollout_remembers_so_it_never_changes() -> None:
    assert point("pepper", "session-1", "arm") == pytest.approx(0.40164351855715896, abs=1e-15)


def test_a_client_chooses_among_the_arms_that_there_are() -> None:
    assert chosen_by_client("control", ("stable", "control")) == "control"
    for name in ("candidate", "", "Stable"):
        with pytest.raises(InvalidRequestError) as caught:
            chosen_by_client(name, ("stable", "control"))
        assert repr(name) in caught.value.message and "stable, control" in caught.value.message
        assert caught.value.remedy


def test_the_stable_pair_stands_in_first_then_the_target_alone_and_the_candidate_for_nobody() -> None:
    arms: tuple[Arm, ...] = ("stable", "candidate", "control")
    assert fallback_order("candidate", arms) == ("candidate", "stable", "control")
    assert fallback_order("stable", arms) == ("stable", "control")
    assert fallback_order("control", arms) == ("control", "stable")
    assert fallback_order("candidate", ("stable", "candidate")) == ("candidate", "stable")
    assert fallback_order("stable", ("stable",)) == ("stable",)


def test_every_arm_before_the_one_that_answered_has_a_reason() -> None:
    order: tuple[Arm, ...] = ("candidate", "stable", "control")
    assert skipped_arms(order, "candidate", {"candidate": "answered"}) == ()
    assert skipped_arms(order, "stable", {"stable": "answered"}) == (("candidate", "out"),)
    assert skipped_arms(
        order, "control", {"candidate": "timeout", "stable": "busy", "control": "answered"}
    ) == (("candidate", "timeout"), ("stable", "busy"))
