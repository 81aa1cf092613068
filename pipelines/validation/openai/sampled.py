"""Compare the distribution of sampled answers of two OpenAI-compatible servers.

Both answer the same prompts many times without a seed, the control twice as often; the tests are those of
``pipelines/validation/distribution``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.bench.reporting.section import Section
from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError
from pipelines.validation.asking import OnAnswer
from pipelines.validation.distribution.drawing import (
    NUM_PROMPTS,
    NUM_TOKENS,
    TOP_K,
    Drawn,
    Draws,
    Sample,
    draw,
    padded,
)
from pipelines.validation.distribution.sections import judge
from pipelines.validation.distribution.sequence_tests import TokenSequence
from pipelines.validation.openai.kinds import SAMPLED
from pipelines.validation.openai.server.server import OpenAIServer, Question


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
    on_answer: OnAnswer,
) -> Samples:
    """Ask a control for sampled answers.

    Args:
        control: The server without speculation; it returns token ids.
        prompts: Prompts, of which the first few are asked.
        num_answers: Number of answers to each in each half.
        num_at_once: Number of concurrent requests.
        on_answer: Called after each answer.
    """
    fields = {"temperature": 1.0, "top_p": 1.0, "top_k": TOP_K}  # whatever the servers' defaults are
    if not _takes(control, Question(prompts[0], 1, SAMPLED, fields)):
        del fields["top_k"]
    questions = tuple(Question(prompt, NUM_TOKENS, SAMPLED, fields) for prompt in prompts[:NUM_PROMPTS])
    sample = _draw("control", control, questions, 2 * num_answers, num_at_once, on_answer)
    drawn = [tuple(answer.token_ids for answer in to_prompt) for to_prompt in sample.answers]
    # One in two, so that each half is of the whole time.
    first, second = (tuple(answers[half::2] for answers in drawn) for half in (0, 1))
    return Samples(questions, first, second, sample.errors)


def compare_samples(
    samples: Samples, candidate: OpenAIServer, num_at_once: int, on_answer: OnAnswer
) -> list[Section]:
    """Ask a candidate as often as the control in each half, and judge its answers.

    Args:
        samples: The control's answers.
        candidate: The server to judge; it returns token ids.
        num_at_once: Number of concurrent requests.
        on_answer: Called after each answer.

    Returns:
        One section.
    """
    num_answers = max(map(len, samples.first))
    judged = _draw("candidate", candidate, samples.questions, num_answers, num_at_once, on_answer)
    first, second = (
        Sample(tuple(tuple(map(Drawn, answers)) for answers in half))
        for half in (samples.first, samples.second)
    )
    return judge(Draws({"candidate": judged}, replace(first, errors=samples.errors), second))


def _draw(
    name: str,
    server: OpenAIServer,
    questions: Sequence[Question],
    num_answers: int,
    num_at_once: int,
    on_answer: OnAnswer,
) -> Sample:
    def ask(_: str, number: int) -> Drawn:
        # Some servers return the token that ends an answer beyond its length.
        return Drawn(padded(server.ask(questions[number]).token_ids))

    size = len(questions), num_answers, num_at_once
    return draw(f"{name}, sampled", ask, [name], *size, on_answer)[name]


def _takes(control: OpenAIServer, question: Question) -> bool:
    try:
        control.try_out(question, log_probs=False)
    except InvalidRequestError:
        return False
    return True
