"""Choose the questions about features: of those that the control follows, each prompt asks one in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pipelines.errors import DraftproofError, InvalidRequestError, VerificationError
from pipelines.validation.openai.features import (
    LONG_PROMPTS,
    OFFERED_TOOLS,
    REQUIRED_CALLS,
    STOP_WORDS,
    STRUCTURED,
    Feature,
    Material,
    Way,
)
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer, Question

FEATURES = {
    feature.name: feature for feature in (STOP_WORDS, STRUCTURED, REQUIRED_CALLS, OFFERED_TOOLS, LONG_PROMPTS)
}


def checked(question: Question, answer: Answer | DraftproofError) -> Answer | DraftproofError:
    """Return an answer, or an error in place of one that breaks the rules of its feature."""
    if isinstance(answer, DraftproofError) or not question.feature:
        return answer
    fault = FEATURES[question.feature].fault(question, answer)
    return VerificationError(f"{fault}: {question.prompt.prompt_id}") if fault else answer


def questions_for(control: OpenAIServer, material: Material) -> tuple[list[Question], list[str]]:
    """Try each feature on the control, and share the prompts among those that it follows.

    Returns:
        Questions, at most one for each prompt; and what cannot be checked, with the reason.
    """
    able, notes = [], []
    for feature in FEATURES.values():
        found = _way(control, feature, material)
        if isinstance(found, str):
            notes.append(f"{feature.name}: {found}")
        else:
            able.append(found)
    made = [
        question
        for number in range(len(material.prompts))
        if able and (question := able[number % len(able)](material, number)) is not None
    ]
    return made, notes


def refused_features(candidate: OpenAIServer, questions: Sequence[Question]) -> dict[str, str]:
    """Try each feature of some questions on the candidate: name -> why it refuses the feature.

    Only a refusal counts. A candidate that takes the request and ignores the feature is judged.
    """
    first = {question.feature: question for question in reversed(questions)}
    refused = {}
    for feature, question in first.items():
        try:
            candidate.try_out(replace(question, with_log_probs=False))
        except InvalidRequestError as error:
            refused[feature] = str(error)
        except DraftproofError:  # judged when all questions are asked
            continue
    return refused


def _way(control: OpenAIServer, feature: Feature, material: Material) -> Way | str:
    """Return the first way to ask for a feature that the control follows, or why there is none."""
    reason = "the prompts, or what the control can do, allow no such request"
    for way in feature.ways:
        asked = (way(material, number) for number in range(len(material.prompts)))
        question = next((each for each in asked if each is not None), None)
        if question is None:
            continue
        for with_log_probs in (True, False):
            tried = _tried(control, replace(question, with_log_probs=with_log_probs))
            if not tried:
                return partial(_asked, way, with_log_probs)
            reason = f"the control does not follow it: {tried}"
    return reason


def _asked(way: Way, with_log_probs: bool, material: Material, number: int) -> Question | None:
    question = way(material, number)
    return question and replace(question, with_log_probs=with_log_probs)


def _tried(control: OpenAIServer, question: Question) -> str:
    """Return why a server does not follow a question; "" if it does."""
    try:
        answer = checked(question, control.try_out(question))
    except DraftproofError as error:
        return str(error)
    return "" if isinstance(answer, Answer) else str(answer)
