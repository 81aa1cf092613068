"""Compare the distribution of sampled answers of two OpenAI-compatible servers.

Both answer the same prompts many times without a seed, the control twice as often; the tests are those of
``pipelines/validation/distribution``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.bench.reporting.section import Section
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.validation.distribution.drawing import TARGET, TARGET_AGAIN, Draws, SampledModel, padded
from pipelines.validation.distribution.sections import judge
from pipelines.validation.distribution.sequence_tests import TokenSequence
from pipelines.validation.openai.server.server import OpenAIServer, Question, ask_each

NUM_PROMPTS = 8
_NUM_TOKENS = 3
_TOP_K = 4  # a narrow distribution, in which every token is frequent enough to be compared
_CANDIDATE = SampledModel("candidate", "candidate")


@dataclass(frozen=True)
class Samples:
    """Sampled answers of a control.

    Attributes:
        questions: The questions.
        first: For each question, the tokens of its answers.
        second: As many answers again.
        errors: Messages in place of missing answers.
    """

    questions: tuple[Question, ...]
    first: tuple[tuple[TokenSequence, ...], ...]
    second: tuple[tuple[TokenSequence, ...], ...]
    errors: tuple[str, ...]


def record_samples(
    control: OpenAIServer,
    prompts: Sequence[Prompt],
    num_answers: int,
    num_at_once: int,
    on_answer: Callable[[int], None],
) -> Samples:
    """Ask a control for sampled answers.

    Args:
        control: The server without speculation; it returns token ids.
        prompts: Prompts, of which the first few are asked.
        num_answers: Number of answers to each in each half.
        num_at_once: Number of concurrent requests.
        on_answer: Called with the number of answers so far, for progress.
    """
    fields = {"temperature": 1.0, "top_k": _TOP_K}
    if not _takes(control, Question(prompts[0], 1, fields=fields)):
        del fields["top_k"]
    questions = tuple(Question(prompt, _NUM_TOKENS, fields=fields) for prompt in prompts[:NUM_PROMPTS])
    drawn, errors = _draw(control, questions, 2 * num_answers, num_at_once, on_answer)
    # One in two, so that each half is of the whole time.
    return Samples(
        questions,
        tuple(answers[::2] for answers in drawn),
        tuple(answers[1::2] for answers in drawn),
        errors,
    )


def compare_samples(
    samples: Samples, candidate: OpenAIServer, num_at_once: int, on_answer: Callable[[int], None]
) -> list[Section]:
    """Ask a candidate as often as the control in each half, and judge its answers.

    Args:
        samples: The control's answers.
        candidate: The server to judge; it returns token ids.
        num_at_once: Number of concurrent requests.
        on_answer: Called with the number of answers so far, for progress.

    Returns:
        One section.
    """
    num_answers = max(map(len, samples.first))
    drawn, errors = _draw(candidate, samples.questions, num_answers, num_at_once, on_answer)
    arms = {_CANDIDATE: drawn, TARGET: samples.first, TARGET_AGAIN: samples.second}
    num_had = sum(len(answers) for of_arm in arms.values() for answers in of_arm)
    return judge(
        Draws(
            (_CANDIDATE,),
            arms,
            {_CANDIDATE: errors, TARGET: samples.errors, TARGET_AGAIN: ()},
            seeds=(None,) * num_had,
        )
    )


def _draw(
    server: OpenAIServer,
    questions: Sequence[Question],
    num_answers: int,
    num_at_once: int,
    on_answer: Callable[[int], None],
) -> tuple[tuple[tuple[TokenSequence, ...], ...], tuple[str, ...]]:
    """Return for each question the tokens of its answers, and the errors in place of missing ones."""
    slots = [number for number in range(len(questions)) for _ in range(num_answers)]
    random.Random(0).shuffle(slots)
    answers = ask_each(lambda number: server.ask(questions[number]), slots, num_at_once, on_answer)
    drawn: list[list[TokenSequence]] = [[] for _ in questions]
    errors = []
    for number, answer in zip(slots, answers, strict=True):
        if isinstance(answer, DraftproofError):
            errors.append(str(answer))
        else:
            # Some servers return the token that ends an answer beyond its length.
            drawn[number].append(padded(answer.token_ids[:_NUM_TOKENS], _NUM_TOKENS))
    return tuple(map(tuple, drawn)), tuple(errors)


def _takes(control: OpenAIServer, question: Question) -> bool:
    try:
        control.try_out(question)
    except InvalidRequestError:
        return False
    return True
