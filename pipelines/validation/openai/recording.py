"""Ask a control everything that a comparison needs of it.

It answers alone, then under load. Verification computes several positions in one pass, which the control
alone never does; so its own answers are also given to it as a prompt, whose log probabilities it computes in
such passes (``echo``). Where it would then prefer another token, it differs from itself too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.audit.arms import Arm, Difference, Margin
from pipelines.validation.openai.baseline import Answers, Baseline, Recorded, Settings
from pipelines.validation.openai.comparing import Outcome, compare_answers, without_unlikely_tokens
from pipelines.validation.openai.feature_choice import questions_for
from pipelines.validation.openai.features import Material
from pipelines.validation.openai.sampled import record_samples
from pipelines.validation.openai.server.abilities import COMPLETIONS, Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer, Question


def record(
    control: OpenAIServer,
    prompts: Prompts,
    settings: Settings,
    conditions: dict[str, Any],
    on_answer: OnAnswer,
    *,
    with_ids: bool = True,
) -> Baseline:
    """Ask a control all questions.

    Args:
        control: The server without speculation.
        prompts: Prompts to ask, at least one.
        settings: Size of the comparison.
        conditions: Kept with the answers.
        on_answer: Called after each answer.
        with_ids: Whether the candidate may have token ids, by which answers are then compared.

    Raises:
        VerificationError: The control answered no prompt.
    """
    able, load = control.abilities, settings.num_at_once
    with_ids = with_ids and able.token_ids

    def answers(name: str, questions: Sequence[Question]) -> Answers:
        return _answers(name, control, questions, load, with_ids, on_answer)

    plain = answers("control", [Question(prompt, settings.max_tokens) for prompt in prompts.all])
    own = [answer if isinstance(answer, Answer) else None for answer in plain.alone]
    if not any(own):
        raise VerificationError("the control answered no prompt", values=str(plain.alone[0]))
    material = Material(prompts.all, own, settings.max_tokens, chat=able.chat, completions=able.completions)
    questions, notes = questions_for(control, material)
    featured = answers("control, features", questions)
    samples = None
    if settings.num_sampled and able.token_ids:
        samples = record_samples(control, prompts.all, settings.num_sampled, load, on_answer)
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
        conditions=conditions,
    )


def _answers(
    name: str,
    control: OpenAIServer,
    questions: Sequence[Question],
    load: int,
    with_ids: bool,
    on_answer: OnAnswer,
) -> Answers:
    """Ask one at a time, under load and in streams, and let the control score its own answers."""

    def ask_alone(question: Question) -> Answer:
        return without_unlikely_tokens(control.ask_with_log_probs(question, named_ids=with_ids))

    def scored(pair: tuple[Question, Outcome]) -> Difference | None:
        question, answer = pair
        # A scored answer follows no schema and has no tools.
        if isinstance(answer, DraftproofError) or question.fields:
            return None
        return score(control, question.prompt, answer)

    alone = ask_each(f"{name}, one at a time", ask_alone, questions, 1, on_answer)
    loaded = ask_each(f"{name} x{load}", control.ask, questions, load, on_answer)
    streamed: list[Outcome] = []
    if control.abilities.ends_streams:
        ask_streamed = partial(control.ask, stream=True)
        streamed = ask_each(f"{name} x{load}, streamed", ask_streamed, questions, load, on_answer)
    noise = compare_answers(f"the {name} x{load}", questions, alone, loaded, with_ids=with_ids)
    if can_score(control.abilities):
        pairs = list(zip(questions, alone, strict=True))
        found = ask_each("control, its own answers in one pass", scored, pairs, 1, on_answer)
        noise = join_noise(
            f"{noise.name}, or with its answer in one pass,",
            noise,
            [each if isinstance(each, Difference) else None for each in found],
        )
    return Answers(tuple(questions), _recorded(alone), _recorded(streamed), noise)


def _recorded(outcomes: Sequence[Outcome]) -> tuple[Recorded, ...]:
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


def join_noise(name: str, loaded: Arm, scored: Sequence[Difference | None]) -> Arm:
    """Join both ways in which the control may differ from itself: the first of them at each prompt counts."""
    pairs = zip(loaded.differences, scored, strict=True)
    return Arm(name, tuple(first or second for first, second in pairs), loaded.missing)
