"""Compare answers to the same questions, each with what its feature lets vary.

The control gave its answer with log probabilities. Up to the difference both answers are one text, so those
at that place count for both tokens. What cannot be determined is unknown, which never counts as a tie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipelines.errors import DraftproofError
from pipelines.openai_stream import TokenLogProbs
from pipelines.validation.differences import (
    END,
    NO_ANSWER,
    Comparison,
    Difference,
    Margin,
    common_length,
    compare_all,
    excerpt,
)
from pipelines.validation.noise_floor import LARGEST_ROUNDING
from pipelines.validation.openai.kinds import KINDS, PLAIN, checked
from pipelines.validation.openai.server.answers import Answer, id_of
from pipelines.validation.openai.server.server import Question


def compare_answers(
    questions: Sequence[Question],
    reference: Sequence[Answer | DraftproofError],
    answers: Sequence[Answer | DraftproofError],
    *,
    with_ids: bool,
    failures_are_faults: bool = True,
) -> Comparison:
    """Find the first difference of each answer from the reference; one that breaks its kind is an error.

    Args:
        questions: The questions.
        reference: The control's answers, with log probabilities.
        answers: The answers to judge.
        with_ids: Whether both have token ids.
        failures_are_faults: Whether a failed request is certainly a fault: the control had none.
    """

    def first(number: int, own: Answer, other: Answer) -> Difference | None:
        return first_difference(questions[number], own, other, with_ids=with_ids)

    ids = [question.prompt.prompt_id for question in questions]
    own, others = (list(map(checked, questions, given)) for given in (reference, answers))
    unknown = None if failures_are_faults else Margin(None, "requests of the control failed too")
    return compare_all(ids, own, others, first, NO_ANSWER, unknown)


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
    """Compare prompts, tokens or texts, why the answers end, what is counted, and log probabilities."""
    name = question.prompt.prompt_id
    may_go_on = question.kind != PLAIN and KINDS[question.kind].tokens_may_go_on
    # Servers differ in whether the token that ends an answer is one of its tokens.
    ends = {own.finish_reason, other.finish_reason} == {"stop"} and own.whole_text == other.whole_text
    if with_ids and own.prompt_ids and other.prompt_ids and own.prompt_ids != other.prompt_ids:
        place = common_length(own.prompt_ids, other.prompt_ids)
        first, second = (str(each.prompt_ids[place : place + 1] or END) for each in (own, other))
        return Difference(name, f"token {place} of the prompt", first, second)
    if with_ids and own.token_ids != other.token_ids:
        ids = own.token_ids, other.token_ids
        place = common_length(*ids)
        is_end = ends and place == min(map(len, ids)) == max(map(len, ids)) - 1
        if place < min(map(len, ids)) or not (may_go_on or is_end):
            first, second = (str(each[place]) if place < len(each) else END for each in ids)
            return Difference(name, f"token {place}", first, second, _margin_of_ids(own, other, place))
        return _of_end(name, own, other) or _of_text(name, own, other, None)
    texts = own.whole_text, other.whole_text
    # A text that goes on differently may rightly end for another reason.
    is_first = with_ids or common_length(*texts) == min(map(len, texts))
    # Another text of equal tokens cannot come from rounding.
    margin = None if with_ids else _margin_of_text(own, other.whole_text)
    found = (_of_end(name, own, other) if is_first else None) or _of_text(name, own, other, margin)
    return (
        found
        or (None if may_go_on else _of_usage(name, own, other, with_ids))
        or _of_log_probs(name, own, other)
    )


def _of_end(name: str, own: Answer, other: Answer) -> Difference | None:
    if own.finish_reason == other.finish_reason:
        return None
    return Difference(name, "finish_reason", own.finish_reason, other.finish_reason)


def _of_text(name: str, own: Answer, other: Answer, margin: Margin | None) -> Difference | None:
    texts = own.whole_text, other.whole_text
    if texts[0] == texts[1]:
        return None
    place = common_length(*texts)
    first, second = (excerpt(each, place) for each in texts)
    return Difference(name, f"character {place}", first, second, margin)


def _of_usage(name: str, own: Answer, other: Answer, with_ids: bool) -> Difference | None:
    """Compare how many tokens of prompt and answer the servers count, as far as both do."""
    counts = {
        "prompt_tokens": (own.num_prompt_tokens, other.num_prompt_tokens),
        "completion_tokens": (own.num_tokens, other.num_tokens),
    }
    for what, (first, second) in counts.items():
        if first is not None and second is not None and first != second:
            unknown = Margin(None, "different tokens may have the same text")
            margin = unknown if what == "completion_tokens" and not with_ids else None
            return Difference(name, f"usage.{what}", str(first), str(second), margin)
    return None


_LIKELY = math.log(0.2)  # at most four tokens are, which even a server with five alternatives tells
_SMALLEST_GAP = 0.1  # nats; what rounding does to the log probability of a likely token is smaller
_MANY = 0.25  # of the tokens of an answer


def _of_log_probs(name: str, own: Answer, other: Answer) -> Difference | None:
    """Compare the log probabilities of likely tokens, if both answers have them.

    The largest gap is shown. Gaps at many of the tokens count together, because rounding moves few so far;
    the few of a long prompt could add up, so they do not.
    """
    if not own.log_probs or not other.log_probs:
        return None
    nums = len(own.log_probs), len(other.log_probs)
    if nums[0] != nums[1]:
        return Difference(name, "log probabilities", f"of {nums[0]} tokens", f"of {nums[1]} tokens")
    num_compared, gaps = 0, list[tuple[float, str, str, str]]()
    for place, (row, beside) in enumerate(zip(own.log_probs, other.log_probs, strict=True)):
        if row.token != beside.token or row.log_prob == _NONE:  # servers may name tokens differently
            continue
        num_compared += 1
        gap, token, first, second = max(_gaps(_known(row), _known(beside)), default=(0.0, "", 0.0, 0.0))
        if gap > _SMALLEST_GAP:
            gaps.append((gap, f"log probability of {token!r} at {place}", f"{first:.3f}", f"{second:.3f}"))
    if not gaps:
        return None
    gap, where, own_has, other_has = max(gaps)
    if len(gaps) >= _MANY * num_compared:
        gap = sum(each for each, *_ in gaps)
    return Difference(name, where, own_has, other_has, Margin(gap))


def _known(row: TokenLogProbs) -> dict[str, float]:
    return {**row.alternatives, row.token: row.log_prob}


def _gaps(own: Mapping[str, float], other: Mapping[str, float]) -> Iterator[tuple[float, str, float, float]]:
    """Yield (gap, token, own log probability, the other) of each token that is likely in one of both.

    The other answer has all likely tokens. Those that are not in the own one are less likely than its others.
    """
    for token, log_prob in own.items():
        if log_prob >= _LIKELY:
            found = other.get(token, -math.inf)
            yield math.inf if math.isnan(found) else abs(log_prob - found), token, log_prob, found
    most = min(own.values())
    for token, found in other.items():
        if found >= _LIKELY and token not in own:
            yield max(0.0, found - most), token, most, found


_MARGIN_KEPT = 4.0  # natural log; several times LARGEST_ROUNDING, above which every margin is a fault
_DIGITS = 5
_NONE = -9999.0  # of the first token of a prompt; JSON has no NaN


def without_unlikely_tokens(answer: Answer) -> Answer:
    """Return an answer without alternatives that decide no margin: the unlikely ones behind the first."""
    return replace(answer, log_probs=tuple(map(_shortened, answer.log_probs)))


def _shortened(row: TokenLogProbs) -> TokenLogProbs:
    ordered = sorted(row.alternatives.items(), key=lambda pair: pair[1], reverse=True)
    num_likely = sum(row.log_prob - log_prob <= _MARGIN_KEPT for _, log_prob in ordered)
    kept = {name: round(log_prob, _DIGITS) for name, log_prob in ordered[: num_likely + 1]}
    log_prob = _NONE if math.isnan(row.log_prob) else round(row.log_prob, _DIGITS)
    return replace(row, log_prob=log_prob, alternatives=kept)


def _margin_of_ids(own: Answer, other: Answer, place: int) -> Margin:
    if not own.log_probs:
        return Margin(None, "the control returned no log probabilities")
    if place >= len(own.token_ids):
        is_long = own.finish_reason == "length"  # the other answer has more tokens than were allowed
        return Margin(math.inf) if is_long else Margin(None, "the control's answer had ended")
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
    known = _known(row)
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
