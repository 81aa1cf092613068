"""Ask a control everything that a comparison needs of it.

It answers alone, then under load. Verification computes several positions in one pass, which the control
alone never does; so its own answers are also given to it as a prompt, whose log probabilities it computes in
such passes (``echo``). Where it would then prefer another token, it differs from itself too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.asking import Stages, ask_each
from pipelines.validation.differences import Comparison, Difference, Margin
from pipelines.validation.openai.baseline import Answers, Baseline, Recorded, Settings
from pipelines.validation.openai.comparing import compare_answers, without_unlikely_tokens
from pipelines.validation.openai.feature_choice import FEATURES, questions_for
from pipelines.validation.openai.features import Material
from pipelines.validation.openai.sampled import record_samples
from pipelines.validation.openai.server.abilities import COMPLETIONS, Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer, Question
from pipelines.validation.size import MOST_TOKENS, Size
from pipelines.validation.stopping import StoppedError

_FEW = 8  # prompts that are asked in any case
_SHORTEST = 16  # tokens of an answer, unless fewer are asked for
_CHARACTERS_PER_MINUTE = 400  # of all time; several long prompts are read several times


def record(
    control: OpenAIServer,
    prompts: Prompts,
    size: Size,
    settings: Settings,
    conditions: dict[str, Any],
    stages: Stages,
    *,
    with_ids: bool = True,
) -> Baseline:
    """Ask a control all questions, or the first of them for which there is time.

    Args:
        control: The server without speculation.
        prompts: Prompts to ask, at least one.
        size: What the user chose of the size of the comparison.
        settings: The greatest size.
        conditions: Kept with the answers.
        stages: Progress of the whole comparison, and how long a part of it may take.
        with_ids: Whether the candidate may have token ids, by which answers are then compared.

    Raises:
        VerificationError: The control answered no prompt.
    """
    able, load = control.abilities, settings.num_at_once
    with_ids = with_ids and able.token_ids

    def answers(name: str, questions: Sequence[Question], least: int) -> Answers:
        return _answers(name, control, questions, load, with_ids, least, stages)

    if not size.max_tokens:
        settings = replace(settings, max_tokens=_length(control, prompts, settings.num_prompts, stages))
    questions = [Question(prompt, settings.max_tokens) for prompt in prompts.all]
    plain = answers("control", questions, size.num_prompts or _FEW)
    own = [answer if isinstance(answer, Answer) else None for answer in plain.alone]
    if not any(own):
        raise VerificationError(f"the control answered no prompt: {next(iter(plain.alone), 'stopped')}")
    prompts = prompts.draw(len(own))
    settings = replace(settings, num_prompts=len(own))
    material = Material(
        *(prompts.all, own, settings.max_tokens),
        chat=able.chat,
        completions=able.completions,
        longest=_CHARACTERS_PER_MINUTE * (size.minutes or math.inf),
    )
    questions, notes = questions_for(control, material)
    featured = answers("control, features", questions, len(FEATURES))
    samples = None
    if settings.num_sampled and able.token_ids:
        samples = record_samples(control, prompts.all, settings.num_sampled, load, stages)
    return Baseline(
        settings=settings,
        control=control.description,
        abilities=able,
        plain=plain,
        featured=featured,
        samples=samples,
        not_checked=tuple(notes),
        failures=dict(control.failures),
        num_retries=control.num_retries,
        conditions=conditions | {"prompts": prompts.document()},
    )


def _length(control: OpenAIServer, prompts: Prompts, num_prompts: int, stages: Stages) -> int:
    """Return how long answers may be for so many of them to fit into one stage."""
    began_s = time.monotonic()
    with suppress(DraftproofError):  # it is asked again, and then counted
        control.try_out(Question(prompts.all[0], _SHORTEST))
    seconds_of_token = (time.monotonic() - began_s) / _SHORTEST
    return max(_SHORTEST, int(min(MOST_TOKENS, stages.share_s / (num_prompts * seconds_of_token))))


def _answers(
    name: str,
    control: OpenAIServer,
    questions: Sequence[Question],
    load: int,
    with_ids: bool,
    least: int,
    stages: Stages,
) -> Answers:
    """Ask one at a time, then under load and in streams, and let the control score its own answers.

    The time decides how many of the questions are asked, but at least ``least``.
    """
    until_s = time.monotonic() + stages.share_s

    def ask_alone(number: int) -> Answer:
        if number >= least and time.monotonic() > until_s:
            raise StoppedError("there is no time for further questions")
        return without_unlikely_tokens(control.ask_with_log_probs(questions[number], named_ids=with_ids))

    def scored(pair: tuple[Question, Answer | DraftproofError]) -> Difference | None:
        question, answer = pair
        # A scored answer follows no schema and has no tools.
        if isinstance(answer, DraftproofError) or question.fields:
            return None
        return score(control, question.prompt, answer)

    given = ask_each(f"{name}, one at a time", ask_alone, range(len(questions)), 1, stages)
    alone = list(takewhile(lambda each: not isinstance(each, StoppedError), given))
    questions = questions[: len(alone)]
    loaded = ask_each(f"{name} x{load}", control.ask, questions, load, stages)
    streamed: list[Answer | DraftproofError] = []
    if control.abilities.ends_streams:
        ask_streamed = partial(control.ask, stream=True)
        streamed = ask_each(f"{name} x{load}, streamed", ask_streamed, questions, load, stages)
    noise = compare_answers(f"the {name} x{load}", questions, alone, loaded, with_ids=with_ids)
    if can_score(control.abilities):
        pairs = list(zip(questions, alone, strict=True))
        found = ask_each("control, its own answers in one pass", scored, pairs, 1, stages)
        noise = join_noise(
            f"{noise.name}, or with its answer in one pass,",
            noise,
            [each if isinstance(each, Difference) else None for each in found],
        )
    return Answers(tuple(questions), _recorded(alone), _recorded(streamed), noise)


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


def join_noise(name: str, loaded: Comparison, scored: Sequence[Difference | None]) -> Comparison:
    """Join both ways in which the control may differ from itself: the first of them at each prompt counts."""
    pairs = zip(loaded.differences, scored, strict=True)
    return Comparison(name, tuple(first or second for first, second in pairs), loaded.missing)
