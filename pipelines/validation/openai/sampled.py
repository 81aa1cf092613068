"""Compare the distribution of sampled answers of two OpenAI-compatible servers.

Both answer the same prompts many times without a seed, the control twice as often; the tests are those of
``pipelines/validation/distribution``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError
from pipelines.reporting.section import Section
from pipelines.validation.distribution.drawing import TARGET, TARGET_AGAIN, Arm, Draws, padded
from pipelines.validation.distribution.prefix_test import TokenSequence
from pipelines.validation.distribution.sections import judge
from pipelines.validation.openai.answers import Answer
from pipelines.validation.openai.asking import ask_each
from pipelines.validation.openai.server import OpenAIServer

NUM_PROMPTS = 8
_NUM_TOKENS = 3
_TOP_K = 4  # a narrow distribution, in which every token is frequent enough to be compared
_CANDIDATE = Arm("candidate", "candidate")


def can_sample(control: OpenAIServer, candidate: OpenAIServer) -> bool:
    """Return whether sampled answers can be compared, which needs their token ids."""
    return control.abilities.token_ids and candidate.abilities.token_ids


def compare_samples(
    prompts: Sequence[Prompt],
    num_answers: int,
    num_at_once: int,
    control: OpenAIServer,
    candidate: OpenAIServer,
    on_answer: Callable[[int], None],
) -> list[Section]:
    """Ask for sampled answers, with both servers mixed so that they have the same load, and judge them.

    Args:
        prompts: Prompts, of which the first few are asked.
        num_answers: Number of answers to each prompt from the candidate, and from the control in each half.
        num_at_once: Number of concurrent requests.
        control: The server without speculation.
        candidate: The server to judge.
        on_answer: Called with the number of answers so far, for progress.

    Returns:
        One section.

    Raises:
        DraftproofError: The control does not answer.
    """
    asked = prompts[:NUM_PROMPTS]
    fields: dict[str, Any] = {"temperature": 1.0, **_narrow(control, asked[0])}
    arms = _CANDIDATE, TARGET, TARGET_AGAIN
    slots = [(index, arm) for index in range(len(asked)) for arm in arms for _ in range(num_answers)]
    random.Random(0).shuffle(slots)

    def ask(slot: tuple[int, Arm]) -> Answer:
        index, arm = slot
        server = candidate if arm == _CANDIDATE else control
        return server.ask(asked[index], _NUM_TOKENS, **fields)

    samples: dict[Arm, list[list[TokenSequence]]] = {arm: [[] for _ in asked] for arm in arms}
    errors: dict[Arm, list[str]] = {arm: [] for arm in arms}
    answers = ask_each(ask, slots, num_at_once, on_answer)
    for (index, arm), answer in zip(slots, answers, strict=True):
        if isinstance(answer, Answer):
            # Some servers return the token that ends an answer beyond its length.
            samples[arm][index].append(padded(answer.token_ids[:_NUM_TOKENS], _NUM_TOKENS))
        else:
            errors[arm].append(str(answer))
    num_had = sum(isinstance(answer, Answer) for answer in answers)
    return judge(Draws((_CANDIDATE,), samples, errors, seeds=(None,) * num_had))


def _narrow(control: OpenAIServer, prompt: Prompt) -> dict[str, Any]:
    """Return the field that leaves few tokens to choose from, if the control knows it."""
    try:
        control.ask(prompt, 1, temperature=1.0, top_k=_TOP_K)
    except InvalidRequestError:
        return {}
    return {"top_k": _TOP_K}
