"""Ask a control everything that a comparison needs of it, in rounds: a few questions of every kind first.

It answers alone, then under load, in streams if it has any. Verification computes several positions in one
pass, which the control alone never does; so its own answers are also given to it as a prompt, whose log
probabilities it computes in such passes (``echo``). Where it would then prefer another token, it differs from
itself too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.differences import Difference, Margin
from pipelines.validation.openai.baseline import Answers, Baseline, Recorded, Settings
from pipelines.validation.openai.comparing import without_unlikely_tokens
from pipelines.validation.openai.kinds import KINDS, PLAIN, Kind, Material, Way, checked
from pipelines.validation.openai.sampled import record_samples
from pipelines.validation.openai.server.abilities import COMPLETIONS, Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer, Question
from pipelines.validation.size import MOST_TOKENS, Size
from pipelines.validation.stopping import StoppedError, stop_error

UNIT = 6
"""Prompts that are asked as they are for each question of every other kind."""

_SHORTEST = 16  # tokens of an answer, unless fewer are asked for
_SHORTEST_PROMPT = 500  # characters of a long one
_CHARACTERS_OF_TOKEN = 20  # that are read, at least, while one token is written
_TOKENS_OF_OTHERS = 250  # that the questions of other kinds take in a unit
_PASSES = 3.2  # of one server: two servers answer alone, and under load in 0.6 of that time
_SHARE = 0.9  # of the time; a round may take longer than the one before it


def rounds(num_units: int, until_s: float) -> Iterator[slice]:
    """Yield which units come next, twice as many each time, until another one would not end in time.

    Args:
        num_units: Number of all units.
        until_s: Clock time at which the last round ends, in seconds of ``time.monotonic``.
    """
    first, size = 0, 1
    while first < num_units and size and not stop_error():
        began_s = time.monotonic()
        yield slice(first, first + size)
        ended_s = time.monotonic()
        seconds = max(1e-6, (ended_s - began_s) / size)
        first += size
        size = int(min(2 * size if first > 1 else 1, _SHARE * max(0.0, until_s - ended_s) / seconds))


class Recorder:
    """Asks a control, round by round.

    Args:
        control: The server without speculation.
        prompts: Prompts to ask, at least one.
        size: What the user chose of the size of the comparison.
        settings: The greatest size.
        until_s: Clock time at which the comparison ends, in seconds of ``time.monotonic``.
        num_servers: Number of servers that share the time.
        on_answer: Called after each answer.
        named_ids: Whether log probabilities may name tokens by ids, which the candidate has too.

    Attributes:
        parts: What it answered so far.
    """

    def __init__(
        self,
        control: OpenAIServer,
        prompts: Prompts,
        size: Size,
        settings: Settings,
        until_s: float,
        num_servers: int,
        on_answer: OnAnswer,
        *,
        named_ids: bool = True,
    ) -> None:
        self.parts: list[Answers] = []
        self._control, self._prompts, self._on_answer = control, prompts, on_answer
        self._until_s = (
            math.inf if size.num_prompts else until_s
        )  # who chooses the prompts has them all asked
        self._named_ids = named_ids
        self._ways: dict[str, Way] = {}
        self._notes: list[str] = []
        self._tried: dict[str, Answer] = {}
        length, self._longest = self._choose_lengths(until_s, num_servers, size.max_tokens)
        self._settings = replace(settings, max_tokens=length)

    def rounds(self) -> Iterator[Answers]:
        """Yield what the control answers in each round; what the caller does meanwhile is a part of it.

        Raises:
            VerificationError: The control answered no prompt.
        """
        prompts = self._prompts.all
        for units in rounds(math.ceil(len(prompts) / UNIT), self._until_s):
            self.parts.append(self._round(prompts[units.start * UNIT : units.stop * UNIT], units))
            yield self.parts[-1]

    def baseline(self, conditions: dict[str, Any]) -> Baseline:
        """Return everything that was recorded, with sampled answers if they are asked for."""
        control, settings = self._control, self._settings
        answers = sum(self.parts[1:], self.parts[0])
        num_prompts = sum(question.kind == PLAIN for question in answers.questions)
        prompts = self._prompts.draw(num_prompts)
        samples = None
        if settings.num_sampled and control.abilities.token_ids:
            load = settings.num_at_once
            samples = record_samples(control, prompts.all, settings.num_sampled, load, self._on_answer)
        return Baseline(
            settings=replace(settings, num_prompts=num_prompts),
            control=control.description,
            abilities=control.abilities,
            answers=answers,
            samples=samples,
            not_checked=tuple(self._notes),
            failures=dict(control.failures),
            num_retries=control.num_retries,
            slowest_s=control.slowest_s,
            conditions=conditions | {"prompts": prompts.document()},
        )

    def _choose_lengths(self, until_s: float, num_servers: int, max_tokens: int | None) -> tuple[int, float]:
        """Return how many tokens answers, and characters prompts, may have for all to be asked in time."""
        began_s = time.monotonic()
        with suppress(DraftproofError):  # it is asked again, and then counted
            self._control.try_out(Question(self._prompts.all[0], _SHORTEST, PLAIN), log_probs=False)
        seconds_of_token = (time.monotonic() - began_s) / _SHORTEST
        seconds_of_unit = (until_s - time.monotonic()) / math.ceil(len(self._prompts.all) / UNIT)
        tokens = seconds_of_unit / (seconds_of_token * _PASSES * num_servers / 2) - _TOKENS_OF_OTHERS
        length = max_tokens or max(_SHORTEST, int(min(MOST_TOKENS, tokens / (2 * UNIT))))
        return length, max(_SHORTEST_PROMPT, _CHARACTERS_OF_TOKEN * (tokens - 2 * UNIT * length))

    def _round(self, prompts: Sequence[Prompt], units: slice) -> Answers:
        plain = [Question(prompt, self._settings.max_tokens, PLAIN) for prompt in prompts]
        of_plain = self._ask("one at a time", plain, 1)
        if not self.parts and not any(isinstance(answer, Answer) for answer in of_plain):
            raise VerificationError(f"the control answered no prompt: {of_plain[0]}")
        material = Material(
            prompts,
            [answer if isinstance(answer, Answer) else None for answer in of_plain],
            self._settings.max_tokens,
            self._control.abilities,
            self._longest,
        )
        if not self.parts:
            choose, kinds = partial(self._choose_way, material), list(KINDS.values())
            chosen = ask_each("control, a question of each kind", choose, kinds, 1, self._on_answer)
            stopped = [kind for kind, error in zip(kinds, chosen, strict=True) if error is not None]
            self._notes += [f"{kind.name}: there was no time to ask" for kind in stopped]
        others = [
            question
            for turn, first in enumerate(range(0, len(prompts), UNIT), units.start)
            for place, way in enumerate(self._ways.values())
            # Another prompt of the unit each time, so that no kind meets the same ones.
            if (question := way(material, first + (place + turn) % len(prompts[first : first + UNIT])))
            is not None
        ]
        questions = (*others, *plain)
        alone = [*self._ask("other kinds, one at a time", others, 1), *of_plain]
        stream, load = self._control.abilities.ends_streams, self._settings.num_at_once
        loaded = self._ask(f"x{load}{', streamed' if stream else ''}", questions, load, stream=stream)
        pairs = list(zip(questions, alone, strict=True))
        scored: list[Difference | None] = [None] * len(pairs)
        if can_score(self._control.abilities):
            name = "control, its own answers in one pass"
            found = ask_each(name, self._scored, pairs, 1, self._on_answer)
            scored = [each if isinstance(each, Difference) else None for each in found]
        return Answers(questions, _recorded(alone), _recorded(loaded), tuple(scored))

    def _ask(
        self, how: str, questions: Sequence[Question], num_at_once: int, *, stream: bool = False
    ) -> list[Answer | DraftproofError]:
        def ask(question: Question) -> Answer:
            if num_at_once > 1:
                with_log_probs = question.log_probs == "both"
                answer = self._control.ask(
                    question, stream=stream, log_probs=with_log_probs, named_ids=self._named_ids
                )
            elif question.prompt.prompt_id in self._tried:
                answer = self._tried.pop(question.prompt.prompt_id)
            else:
                wants = question.log_probs != "none"
                answer = self._control.ask(question, log_probs=wants, named_ids=self._named_ids)
            return without_unlikely_tokens(answer)

        return ask_each(f"control {how}", ask, questions, num_at_once, self._on_answer)

    def _choose_way(self, material: Material, kind: Kind) -> None:
        """Take the first way to ask that the control follows, or note why there is none."""
        reason = "the prompts, or what the control can do, allow no such request"
        for way in kind.ways:
            asked = (way(material, number) for number in range(len(material.prompts)))
            question = next((each for each in asked if each is not None), None)
            if question is None:
                continue
            for log_probs in (
                ("control", "none") if question.log_probs == "control" else (question.log_probs,)
            ):
                wants = log_probs != "none"
                try:
                    answer = self._control.try_out(question, log_probs=wants, named_ids=self._named_ids)
                    answer_or_fault = checked(question, answer)
                except StoppedError:
                    raise
                except DraftproofError as error:
                    answer_or_fault = error
                if isinstance(answer_or_fault, Answer):
                    self._tried[question.prompt.prompt_id] = answer_or_fault
                    self._ways[kind.name] = partial(_asked, way, log_probs)
                    return
                reason = f"the control does not follow it: {answer_or_fault}"
        self._notes.append(f"{kind.name}: {reason}")

    def _scored(self, pair: tuple[Question, Answer | DraftproofError]) -> Difference | None:
        question, answer = pair
        # A scored answer follows no schema and has no tools.
        if isinstance(answer, DraftproofError) or question.kind != PLAIN:
            return None
        return score(self._control, question.prompt, answer)


def _asked(way: Way, log_probs: Any, material: Material, number: int) -> Question | None:
    question = way(material, number)
    return question and replace(question, log_probs=log_probs)


def _recorded(outcomes: Sequence[Answer | DraftproofError]) -> tuple[Recorded, ...]:
    return tuple(each.to_wire() if isinstance(each, DraftproofError) else each for each in outcomes)


def can_score(abilities: Abilities) -> bool:
    """Return whether a server can score its own answers."""
    return abilities.echo and abilities.token_ids and abilities.prompt_ids and abilities.completions


def score(server: OpenAIServer, prompt: Prompt, answer: Answer) -> Difference | None:
    """Let a server score its own answer in one pass, and find the first token that it would replace.

    Returns:
        The token and its margin; None if it would replace none, or scored nothing.
    """
    fields = {
        "prompt": [*answer.prompt_ids, *answer.token_ids],
        "max_tokens": 1,
        "echo": True,
        **server.log_prob_fields(COMPLETIONS),
    }
    try:
        scored = server.request(COMPLETIONS, fields)
    except DraftproofError:  # too long with one more token; the server counts what else went wrong
        return None
    begin = len(answer.prompt_ids)
    for place, row in enumerate(scored.log_probs[begin : begin + len(answer.token_ids)]):
        best = max(row.alternatives, key=row.alternatives.__getitem__, default=row.token)
        margin = row.alternatives.get(best, row.log_prob) - row.log_prob
        if margin > 0:
            return Difference(prompt.prompt_id, f"token {place}", row.token, best, Margin(margin))
    return None
