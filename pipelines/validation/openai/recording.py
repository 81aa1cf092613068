"""Ask a control everything that a comparison needs of it, in rounds: a few questions of every kind first.

It answers alone, then under load, in streams if it has any. Verification computes several positions in one
pass, which the control alone never does; so its own answers are also given to it as a prompt, whose log
probabilities it computes in such passes (``echo``). Where it would then prefer another token, it differs from
itself too.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import DraftproofError, InvalidRequestError, VerificationError
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

_OTHERS = (2, 2, 1)
"""Questions of other kinds that follow three prompts in turn: each kind is asked three times in twenty."""

_FIRST = 1 + _OTHERS[0]  # questions of the first round
_MOST_TRIALS = 2  # of a kind that the control does not follow
_SHORTEST = 16  # tokens of an answer, unless fewer are asked for, or a slow server has no time for these
_FEWEST = 20  # prompts; half as long answers leave time for more
_SHORTEST_PROMPT = 500  # characters of a long one
_CHARACTERS_OF_TOKEN = 20  # that are read, at least, while one token is written
_LENGTHS_OF_PROMPT = 2.2  # of a plain answer, in all answers to a prompt
_TOKENS_OF_PROMPT = 30  # that they have besides, however long plain answers are
_PASSES = 3.2  # of two servers, which answer alone, and under load in 0.6 of that time
_SHARE = 0.85  # of the time; a round may take longer than the one before it


def rounds(num_questions: int, until_s: float) -> Iterator[slice]:
    """Yield which questions come next, twice as many each time, until more would not end in time.

    Args:
        num_questions: Number of all questions.
        until_s: Clock time at which the last round ends, in seconds of ``time.monotonic``.

    Raises:
        StoppedError: The time was over before anything was asked.
    """
    if error := stop_error():
        raise error
    first, size = 0, _FIRST
    while first < num_questions and size >= _FIRST and not stop_error():
        began_s = time.monotonic()
        yield slice(first, first + size)
        ended_s = time.monotonic()
        seconds = max(1e-6, (ended_s - began_s) / size)
        first += size
        size = int(min(first, _SHARE * max(0.0, until_s - ended_s) / seconds))


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
        # Who chooses the number of prompts has them all asked.
        self._until_s = math.inf if size.num_prompts else until_s
        self._named_ids = named_ids
        length, longest = self._choose_lengths(until_s, num_servers, size.max_tokens)
        self._settings = replace(settings, max_tokens=length)
        self._answers: dict[int, Answer] = {}
        self._material = Material(prompts.all, self._answers, length, control.abilities, longest)
        self._ways: dict[str, Way] = {}
        self._trials: Counter[str] = Counter()
        self._reasons = dict.fromkeys(KINDS, "there was no time to ask, or no prompt allows it")

    def rounds(self) -> Iterator[Answers]:
        """Yield what the control answers in each round; what the caller does meanwhile is a part of it.

        Raises:
            VerificationError: The control answers nothing.
        """
        turns, others = itertools.cycle(KINDS), itertools.cycle(_OTHERS)
        asked = [
            (kind, number)
            for number in range(len(self._prompts.all))
            for kind in (PLAIN, *itertools.islice(turns, next(others)))
        ]
        for part in rounds(len(asked), self._until_s):
            self.parts.append(self._round(asked[part]))
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
            not_checked=tuple(f"{kind}: {why}" for kind, why in self._reasons.items()),
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
        seconds = until_s - time.monotonic()
        num_tokens = seconds / (seconds_of_token * _PASSES * num_servers / 2)
        is_slow = num_tokens < _FEWEST * (_LENGTHS_OF_PROMPT * _SHORTEST + _TOKENS_OF_PROMPT)
        shortest = _SHORTEST // 2 if is_slow else _SHORTEST
        tokens = num_tokens / len(self._prompts.all) - _TOKENS_OF_PROMPT
        length = max_tokens or max(shortest, int(min(MOST_TOKENS, tokens / _LENGTHS_OF_PROMPT)))
        to_read = (tokens - _LENGTHS_OF_PROMPT * length) * len(KINDS) * len(_OTHERS) / sum(_OTHERS)
        return length, max(_SHORTEST_PROMPT, _CHARACTERS_OF_TOKEN * to_read)

    def _round(self, asked: Sequence[tuple[str, int]]) -> Answers:
        given = ask_each("control one at a time", self._ask_alone, asked, 1, self._on_answer)
        pairs = [pair for pair in given if isinstance(pair, tuple)]
        questions, alone = (tuple(each) for each in zip(*pairs, strict=True)) if pairs else ((), ())
        if not self.parts and not any(isinstance(answer, Answer) for answer in alone):
            raise VerificationError(f"the control answered nothing: {next(iter(alone), stop_error())}")
        stream, load = self._control.abilities.ends_streams, self._settings.num_at_once

        def ask_loaded(question: Question) -> Answer:
            how = {"log_probs": question.log_probs == "both", "named_ids": self._named_ids}
            return without_unlikely_tokens(self._control.ask(question, stream=stream, **how))

        name = f"control x{load}{', streamed' if stream else ''}"
        loaded = ask_each(name, ask_loaded, questions, load, self._on_answer)
        scored: list[Difference | None] = [None] * len(pairs)
        if can_score(self._control.abilities):
            name = "control, its own answers in one pass"
            found = ask_each(name, self._scored, pairs, 1, self._on_answer)
            scored = [each if isinstance(each, Difference) else None for each in found]
        return Answers(questions, _recorded(alone), _recorded(loaded), tuple(scored))

    def _ask_alone(self, asked: tuple[str, int]) -> tuple[Question, Answer | DraftproofError] | None:
        """Ask a question of a kind about the prompt with a number; None if there is no such question."""
        kind, number = asked
        if kind != PLAIN and kind not in self._ways:
            return self._try_ways(KINDS[kind], number)
        way = _plain if kind == PLAIN else self._ways[kind]
        if (question := way(self._material, number)) is None:
            return None
        wants = question.log_probs != "none"
        try:
            answer = self._control.ask(question, log_probs=wants, named_ids=self._named_ids)
        except StoppedError:
            raise
        except DraftproofError as error:
            # One such prompt may be too long where another was not.
            return None if isinstance(error, InvalidRequestError) and kind != PLAIN else (question, error)
        if kind == PLAIN:
            self._answers[number] = answer
        return question, without_unlikely_tokens(answer)

    def _try_ways(self, kind: Kind, number: int) -> tuple[Question, Answer] | None:
        """Take the first way to ask that the control follows, or note why there is none."""
        if self._trials[kind.name] == _MOST_TRIALS:
            return None
        was_asked = False
        for way, with_margins in itertools.product(kind.ways, (True, False)):
            asked = partial(_asked, way, with_margins)
            if (question := asked(self._material, number)) is None:
                continue
            was_asked = True
            wants = question.log_probs != "none"
            try:
                answer = self._control.try_out(question, log_probs=wants, named_ids=self._named_ids)
                answer_or_fault = checked(question, answer)
            except StoppedError:
                raise
            except DraftproofError as error:
                answer_or_fault = error
            if isinstance(answer_or_fault, Answer):
                self._ways[kind.name] = asked
                self._reasons.pop(kind.name)
                return question, without_unlikely_tokens(answer_or_fault)
            self._reasons[kind.name] = f"the control does not follow it: {answer_or_fault}"
        self._trials[kind.name] += was_asked
        return None

    def _scored(self, pair: tuple[Question, Answer | DraftproofError]) -> Difference | None:
        question, answer = pair
        # A scored answer follows no schema and has no tools.
        if isinstance(answer, DraftproofError) or question.kind != PLAIN:
            return None
        return score(self._control, question.prompt, answer)


def _plain(material: Material, number: int) -> Question:
    return Question(material.prompts[number], material.max_tokens, PLAIN)


def _asked(way: Way, with_margins: bool, material: Material, number: int) -> Question | None:
    """Ask in some way, perhaps without the log probabilities that only margins need."""
    question = way(material, number)
    if question is None or with_margins:
        return question
    return replace(question, log_probs="none") if question.log_probs == "control" else None


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
