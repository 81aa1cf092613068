"""Everything that a comparison needs of the control, so that the control itself need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import DraftproofError, VerificationError, from_wire
from pipelines.validation.audit.arms import Arm
from pipelines.validation.openai.sampled import Samples
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.questions import Question

Recorded = Answer | str
"""An answer, or the error in place of one, as ``DraftproofError.to_wire`` writes it."""


@dataclass(frozen=True)
class Settings:
    """Size of a comparison.

    Attributes:
        num_prompts: Most prompts that are asked.
        max_tokens: Most tokens of an answer.
        num_at_once: Number of concurrent requests of the load.
        num_sampled: Number of sampled answers to each of the first few prompts; 0 for none.
    """

    num_prompts: int = 320
    max_tokens: int = 128
    num_at_once: int = 8
    num_sampled: int = 0


@dataclass(frozen=True)
class Answers:
    """The control's answers to some questions.

    Attributes:
        questions: The questions; their ids are unique.
        alone: Its answers one at a time, with log probabilities: the reference.
        streamed: Its answers in streams, under load; empty if it has none.
        noise: Where it differs from the reference under load, or in one pass over its own answer.
    """

    questions: tuple[Question, ...]
    alone: tuple[Recorded, ...]
    streamed: tuple[Recorded, ...]
    noise: Arm


@dataclass(frozen=True)
class Baseline:
    """A control's answers, and what is known of the control.

    Attributes:
        settings: Size of the comparison.
        control: Engine, model and fingerprint of the control.
        abilities: What it can tell about its answers.
        plain: Greedy answers to the prompts.
        featured: Answers to questions about features; there may be none.
        samples: Sampled answers; None if there are none.
        not_checked: What could not be asked, with the reasons.
        failures: Kinds of failed requests -> how many there were.
        num_retries: Number of requests that were sent again because the control was busy.
        conditions: When, where and with which command they were recorded, and the prompts.
    """

    settings: Settings
    control: str
    abilities: Abilities
    plain: Answers
    featured: Answers
    samples: Samples | None
    not_checked: tuple[str, ...]
    failures: Mapping[str, int]
    num_retries: int
    conditions: Mapping[str, Any]


def answer_or_error(recorded: Recorded) -> Answer | DraftproofError:
    """Return a recorded answer, or the error in place of one."""
    if isinstance(recorded, Answer):
        return recorded
    return from_wire(recorded) or VerificationError("the baseline has no answer", values=recorded)
