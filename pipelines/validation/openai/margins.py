"""Look up how certain the control was at the first difference of two answers.

The control answers again with log probabilities. Up to the difference both answers are one text, so those of
the control's answer at that place are the ones that count for both tokens. If the control does not repeat its
answer, its own tokens are given to it as a prompt. What cannot be determined is unknown, which never counts
as a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from pipelines.client import Generation
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.audit.margins import Margin
from pipelines.validation.audit.noise_floor import LARGEST_ROUNDING
from pipelines.validation.openai.abilities import COMPLETIONS
from pipelines.validation.openai.answers import Answer, TokenLogProbs
from pipelines.validation.openai.server import OpenAIServer


class ControlMargins:
    """Looks margins up on the control.

    Args:
        control: The server without speculation.
        max_tokens: Most tokens of the answers that are compared.
    """

    def __init__(self, control: OpenAIServer, max_tokens: int) -> None:
        self._control = control
        self._max_tokens = max_tokens

    def margin(self, prompt: Prompt, expected: Generation, actual: Generation) -> Margin:
        """Compare the two tokens at the first difference of two answers to ``prompt``."""
        if not self._control.abilities.log_probs:
            return Margin(None, "the control returns no log probabilities")
        try:
            if expected.output_ids:
                return self._by_ids(prompt, expected, actual)
            return self._by_text(prompt, expected.text, actual.text)
        except DraftproofError as error:
            return Margin(None, f"the control did not answer again: {error}")

    def _by_ids(self, prompt: Prompt, expected: Generation, actual: Generation) -> Margin:
        place = _common_length(expected.output_ids, actual.output_ids)
        if place >= len(expected.output_ids):
            return Margin(None, "the control's answer had ended")
        if place >= len(actual.output_ids):
            # An answer that reached its length with fewer tokens lacks some.
            is_short = actual.finish_reason == "length" == expected.finish_reason
            return Margin(math.inf) if is_short else Margin(None, "the other answer had ended")
        ids = expected.output_ids[: place + 1]
        again = self._control.ask_with_log_probs(prompt, place + 1)
        if again.token_ids[: place + 1] != ids:
            again = self._forced(again.prompt_ids, ids[:-1])
        if not again.log_probs or len(again.log_probs) != len(again.token_ids):
            return Margin(None, "the control did not repeat its answer")
        row = again.log_probs[-1]
        if self._control.abilities.named_ids:
            return margin_at(row, f"token_id:{ids[place]}", f"token_id:{actual.output_ids[place]}")
        start = sum(len(each.token) for each in again.log_probs[:-1])
        return margin_at(row, row.token, _name_of(row, actual.text[start:]))

    def _forced(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Answer:
        """Ask for the token after the control's own ones; without log probabilities if that is impossible."""
        if not (self._control.abilities.prompt_ids and self._control.abilities.named_ids):
            return Answer("", "")
        fields = self._control.log_prob_fields(COMPLETIONS)
        return self._control.request(COMPLETIONS, {"prompt": [*prompt_ids, *ids], "max_tokens": 1, **fields})

    def _by_text(self, prompt: Prompt, expected: str, actual: str) -> Margin:
        again = self._control.ask_with_log_probs(prompt, self._max_tokens, named_ids=False)
        place = _common_length(expected, actual)
        start = 0
        for row in again.log_probs:
            end = start + len(row.token)
            if again.text[:end] != expected[:end]:
                return Margin(None, "the control did not repeat its answer")
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
        return Margin(None, "the control now prefers a third token")
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
