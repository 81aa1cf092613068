"""Compare answers to the same questions, each with what its feature lets vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipelines.client import Generation
from pipelines.errors import DraftproofError
from pipelines.validation.audit.arms import Arm, compare_arm
from pipelines.validation.openai.features.choice import FEATURES, checked
from pipelines.validation.openai.margins import RecordedMargins
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.questions import Question

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
