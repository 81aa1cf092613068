"""Compare answers to the same questions, each with what its feature lets vary.

The control gave its answer with log probabilities. Up to the difference both answers are one text, so those
at that place count for both tokens. What cannot be determined is unknown, which never counts as a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelines.errors import DraftproofError
from pipelines.openai_stream import TokenLogProbs
from pipelines.validation.differences import (
    END,
    Comparison,
    Difference,
    Margin,
    common_length,
    compare_all,
    excerpt,
)
from pipelines.validation.noise_floor import LARGEST_ROUNDING
from pipelines.validation.openai.feature_choice import FEATURES, checked
from pipelines.validation.openai.server.answers import Answer, id_of
from pipelines.validation.openai.server.server import Question


def compare_answers(
    name: str,
    questions: Sequence[Question],
    reference: Sequence[Answer | DraftproofError],
    answers: Sequence[Answer | DraftproofError],
    *,
    with_ids: bool,
) -> Comparison:
    """Find the first difference of each answer from the reference; one that breaks its feature is an error.

    Args:
        name: Name of the answers in the report.
        questions: The questions.
        reference: The control's answers, with log probabilities.
        answers: The answers to judge.
        with_ids: Whether both have token ids.
    """

    def first(number: int, own: Answer, other: Answer) -> Difference | None:
        return first_difference(questions[number], own, other, with_ids=with_ids)

    ids = [question.prompt.prompt_id for question in questions]
    own, others = (list(map(checked, questions, given)) for given in (reference, answers))
    return compare_all(name, ids, own, others, first)


def as_streamed(
    reference: Answer | DraftproofError, streamed: Answer | DraftproofError
) -> Answer | DraftproofError:
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


def first_difference(question: Question, own: Answer, other: Answer, *, with_ids: bool) -> Difference | None:
    """Compare tokens, else texts, then the reasons why the answers end, then what tokens were made into."""
    name = question.prompt.prompt_id
    if with_ids and own.token_ids != other.token_ids:
        ids = own.token_ids, other.token_ids
        place = common_length(*ids)
        may_go_on = bool(question.feature) and FEATURES[question.feature].tokens_may_go_on
        if place < min(map(len, ids)) or not may_go_on:
            first, second = (str(each[place]) if place < len(each) else END for each in ids)
            return Difference(name, f"token {place}", first, second, _margin_of_ids(own, other, place))
    texts = own.whole_text, other.whole_text
    place = common_length(*texts)
    in_text = None
    if texts[0] != texts[1]:
        # Another text of equal tokens cannot come from rounding.
        margin = None if with_ids else _margin_of_text(own, other.whole_text)
        first, second = (excerpt(each, place) for each in texts)
        in_text = Difference(name, f"character {place}", first, second, margin)
    # A text that goes on differently may rightly end for another reason.
    is_first_difference = with_ids or place == min(map(len, texts))
    if own.finish_reason != other.finish_reason and is_first_difference:
        return Difference(name, "finish_reason", own.finish_reason, other.finish_reason, None)
    return in_text


_MARGIN_KEPT = 4.0  # natural log; several times LARGEST_ROUNDING, above which every margin is a fault
_DIGITS = 5


def without_unlikely_tokens(answer: Answer) -> Answer:
    """Return an answer without alternatives that decide no margin: the unlikely ones behind the first."""
    return replace(answer, log_probs=tuple(map(_shortened, answer.log_probs)))


def _shortened(row: TokenLogProbs) -> TokenLogProbs:
    ordered = sorted(row.alternatives.items(), key=lambda pair: pair[1], reverse=True)
    num_likely = sum(row.log_prob - log_prob <= _MARGIN_KEPT for _, log_prob in ordered)
    kept = {name: round(log_prob, _DIGITS) for name, log_prob in ordered[: num_likely + 1]}
    return replace(row, log_prob=round(row.log_prob, _DIGITS), alternatives=kept)


def _margin_of_ids(own: Answer, other: Answer, place: int) -> Margin:
    if not own.log_probs:
        return Margin(None, "the control returned no log probabilities")
    if place >= len(own.token_ids):
        return Margin(None, "the control's answer had ended")
    if place >= len(other.token_ids):
        # An answer that reached its length with fewer tokens lacks some.
        is_short = other.finish_reason == "length" == own.finish_reason
        return Margin(math.inf) if is_short else Margin(None, "the other answer had ended")
    if len(own.log_probs) != len(own.token_ids):
        return Margin(None, "the control's log probabilities are not those of its tokens")
    row = own.log_probs[place]
    if id_of(row.token) is not None:
        return margin_at(row, f"token_id:{own.token_ids[place]}", f"token_id:{other.token_ids[place]}")
    start = sum(len(each.token) for each in own.log_probs[:place])
    return margin_at(row, row.token, _name_of(row, other.whole_text[start:]))


def _margin_of_text(own: Answer, other: str) -> Margin:
    if not own.log_probs:
        return Margin(None, "the control returned no log probabilities")
    if id_of(own.log_probs[0].token) is not None:
        return Margin(None, "the candidate returns no token ids, by which the control's are named")
    place, start = common_length(own.text, other), 0
    for row in own.log_probs:
        end = start + len(row.token)
        if own.text[start:end] != row.token:
            return Margin(None, "the control's tokens are not its text")
        if place < end:
            return margin_at(row, row.token, _name_of(row, other[start:]))
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
