"""Compare answers to the same questions, each with what its feature lets vary.

The control gave its answer with log probabilities. Up to the difference both answers are one text, so those
at that place count for both tokens. What cannot be determined is unknown, which never counts as a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from pipelines.client import Generation
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.audit.arms import Arm, Margin, compare_arm
from pipelines.validation.audit.noise_floor import LARGEST_ROUNDING
from pipelines.validation.openai.feature_choice import FEATURES, checked
from pipelines.validation.openai.server.answers import Answer, TokenLogProbs, id_of
from pipelines.validation.openai.server.server import Question

Outcome = Answer | DraftproofError


def compare_answers(
    name: str,
    questions: Sequence[Question],
    reference: Sequence[Outcome],
    answers: Sequence[Outcome],
    *,
    with_ids: bool,
) -> Arm:
    """Find the first difference of each answer from the reference; one that breaks its feature is an error.

    Args:
        name: Name of the answers in the report.
        questions: The questions.
        reference: The control's answers, with log probabilities.
        answers: The answers to judge.
        with_ids: Whether both have token ids.
    """
    rows = list(zip(questions, reference, answers, strict=True))
    margins = RecordedMargins(
        {question.prompt.prompt_id: own for question, own, _ in rows if isinstance(own, Answer)}
    )
    pairs = [
        _comparable(question, checked(question, own), checked(question, other), with_ids)
        for question, own, other in rows
    ]
    return compare_arm(
        name,
        [question.prompt for question in questions],
        [own for own, _ in pairs],
        [other for _, other in pairs],
        margins.margin,
    )


def as_streamed(reference: Outcome, streamed: Outcome) -> Outcome:
    """Return what the control gives in a stream: servers may part an answer into texts and calls differently.

    Args:
        reference: The control's whole answer, with log probabilities.
        streamed: Its streamed answer.

    Returns:
        The streamed answer with those log probabilities if both have the same tokens, else the whole answer.
    """
    if isinstance(reference, DraftproofError) or isinstance(streamed, DraftproofError):
        return reference
    if reference.token_ids != streamed.token_ids:
        return reference
    return replace(streamed, log_probs=reference.log_probs)


def _comparable(
    question: Question, own: Outcome, other: Outcome, with_ids: bool
) -> tuple[Generation | DraftproofError, Generation | DraftproofError]:
    if isinstance(own, DraftproofError) or isinstance(other, DraftproofError):
        return _generation(own, with_ids), _generation(other, with_ids)
    if question.feature and FEATURES[question.feature].tokens_may_go_on:
        first, second = own.token_ids, other.token_ids
        if first[: len(second)] == second or second[: len(first)] == first:
            other = replace(other, token_ids=first)
    return _generation(own, with_ids), _generation(other, with_ids)


def _generation(outcome: Outcome, with_ids: bool) -> Generation | DraftproofError:
    return outcome if isinstance(outcome, DraftproofError) else outcome.as_generation(with_ids=with_ids)


_MARGIN_KEPT = 4.0  # natural log; several times LARGEST_ROUNDING, above which every margin is a fault
_DIGITS = 5


class RecordedMargins:
    """Looks margins up in the control's answers.

    Args:
        answers: Id of a question -> the control's answer.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def margin(self, prompt: Prompt, expected: Generation, actual: Generation) -> Margin:
        """Compare the two tokens at the first difference of two answers to a question."""
        answer = self._answers[prompt.prompt_id]
        if not answer.log_probs:
            return Margin(None, "the control returned no log probabilities")
        if expected.output_ids:
            return _by_ids(answer, expected, actual)
        return _by_text(answer, actual.text)


def without_unlikely_tokens(answer: Answer) -> Answer:
    """Return an answer without alternatives that decide no margin: the unlikely ones behind the first."""
    return replace(answer, log_probs=tuple(map(_shortened, answer.log_probs)))


def _shortened(row: TokenLogProbs) -> TokenLogProbs:
    ordered = sorted(row.alternatives.items(), key=lambda pair: pair[1], reverse=True)
    num_likely = sum(row.log_prob - log_prob <= _MARGIN_KEPT for _, log_prob in ordered)
    kept = {name: round(log_prob, _DIGITS) for name, log_prob in ordered[: num_likely + 1]}
    return replace(row, log_prob=round(row.log_prob, _DIGITS), alternatives=kept)


def _by_ids(answer: Answer, expected: Generation, actual: Generation) -> Margin:
    place = _common_length(expected.output_ids, actual.output_ids)
    if place >= len(expected.output_ids):
        return Margin(None, "the control's answer had ended")
    if place >= len(actual.output_ids):
        # An answer that reached its length with fewer tokens lacks some.
        is_short = actual.finish_reason == "length" == expected.finish_reason
        return Margin(math.inf) if is_short else Margin(None, "the other answer had ended")
    if len(answer.log_probs) != len(answer.token_ids):
        return Margin(None, "the control's log probabilities are not those of its tokens")
    row = answer.log_probs[place]
    if id_of(row.token) is not None:
        ids = expected.output_ids[place], actual.output_ids[place]
        return margin_at(row, f"token_id:{ids[0]}", f"token_id:{ids[1]}")
    start = sum(len(each.token) for each in answer.log_probs[:place])
    return margin_at(row, row.token, _name_of(row, actual.text[start:]))


def _by_text(answer: Answer, actual: str) -> Margin:
    if id_of(answer.log_probs[0].token) is not None:
        return Margin(None, "the candidate returns no token ids, by which the control's are named")
    place = _common_length(answer.text, actual)
    start = 0
    for row in answer.log_probs:
        end = start + len(row.token)
        if answer.text[start:end] != row.token:
            return Margin(None, "the control's tokens are not its text")
        if place < end:
            return margin_at(row, row.token, _name_of(row, actual[start:]))
        start = end
    return Margin(None, "one answer had ended")


def margin_at(row: TokenLogProbs, expected: str, actual: str | None) -> Margin:
    """Compare two tokens at one place.

    Args:
        row: Log probabilities there.
        expected: Name of the control's token.
        actual: Name of the other token; None if it is none of the alternatives.
    """
    known: Mapping[str, float] = {**row.alternatives, row.token: row.log_prob}
    if expected not in known or max(known, key=known.__getitem__) not in (expected, actual):
        return Margin(None, "the control prefers a third token")
    if actual is not None and actual in known:
        return Margin(known[expected] - known[actual])
    least = known[expected] - min(known.values())
    if least > LARGEST_ROUNDING:
        return Margin(least)
    return Margin(None, f"the other token is not among the control's {len(known)} likeliest")


def _name_of(row: TokenLogProbs, rest: str) -> str | None:
    """Return the longest alternative with which the rest of the other answer begins, if any."""
    names = [name for name in row.alternatives if name and name != row.token and rest.startswith(name)]
    return max(names, key=len, default=None)


def _common_length(first: Sequence[object], second: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
