"""Tests that a client gets its answer once and complete, whatever three arms do in whatever order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import RequestTimeoutError
from pipelines.router.arms import Arm
from tests.unit.router.scripted_arms import ALL, BUSY, DOWN, FOR_EVER_S, Chunk, ScriptedArms, Step, answer


def cut_up(ids: Sequence[int], cuts: set[int], *, with_empty_end: bool) -> list[Chunk]:
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(ids)), len(ids)]
    parts = [tuple(ids[begin:end]) for begin, end in itertools.pairwise(edges) if end > begin]
    if with_empty_end or not parts:
        parts.append(())
    return [*(Chunk(part) for part in parts[:-1]), Chunk(parts[-1], "stop")]


@st.composite
def scripts_of_arms(draw: st.DrawFn) -> tuple[dict[Arm, list[Step]], dict[Arm, list[int]], bool]:
    """Draw scripts of three arms, each until it fails, ends or falls silent for ever.

    Returns:
        The scripts, the whole answer of each arm, and whether any of them reaches its end.
    """
    tokens = st.lists(st.integers(0, 2), max_size=6)
    common = draw(st.none() | tokens)
    scripts: dict[Arm, list[Step]] = {}
    answers: dict[Arm, list[int]] = {}
    is_answered = False
    for arm in ALL:
        answers[arm] = draw(tokens) if common is None else common
        chunks = cut_up(answers[arm], draw(st.sets(st.integers(1, 5))), with_empty_end=draw(st.booleans()))
        num = draw(st.one_of(st.just(len(chunks)), st.integers(0, len(chunks))))
        script: list[Step] = []
        for chunk in chunks[:num]:
            script += [draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 5.0])), chunk]
        if num < len(chunks):
            script.append(draw(st.sampled_from([DOWN, BUSY, OSError("gone"), FOR_EVER_S])))
        else:
            script += draw(st.sampled_from([[], [3.0], [DOWN]]))
        is_answered = is_answered or num == len(chunks)
        scripts[arm] = script
    return scripts, answers, is_answered


@given(scripts_of_arms(), st.sampled_from([0.0, 0.0, 1.0, 4.0]), st.booleans())
def test_whatever_happens_to_the_arms_the_client_has_one_answer_as_long_as_one_of_them_gives_it(
    case: tuple[dict[Arm, list[Step]], dict[Arm, list[int]], bool], pause_s: float, streaming: bool
) -> None:
    scripts, answers, is_answered = case
    arms = ScriptedArms({**scripts})
    if not is_answered:
        for script in scripts.values():
            if script[-1] == FOR_EVER_S:
                script[-1:] = [100.0, RequestTimeoutError("the client waits no longer")]
    received = answer(arms, pause_s=pause_s, streaming=streaming)
    begin = 0
    for arm, chunk in received.chunks:  # each token is the one of its arm at that position
        end = begin + len(chunk.ids)
        assert list(chunk.ids) == answers[arm][begin:end]
        begin = end
    if is_answered:
        assert received.is_whole
        assert [outcome for _, outcome in arms.outcomes].count("answered") == 1
    else:
        assert received.error is not None
    if not streaming:
        assert len(set(received.arms)) <= 1
    assert Counter(arm for arm, _ in arms.closed) <= Counter(arm for arm, _ in arms.asked)
