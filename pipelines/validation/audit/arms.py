"""Holds the first difference of each answer from the control's own, which an audit judges.

Only the first difference counts, because after it the answers continue different texts. The control answers
one request at a time (the reference), then concurrent requests (A/A), whose differences are the noise of
kernels that depend on the batch. The candidate has the same load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Margin:
    """Margin between the two tokens at a difference.

    Attributes:
        log_prob_difference: Natural log probability of the control's token less that of the other, given the
            common start; None if unknown. Of a token that is none of the alternatives, the least that it can
            be.
        why_unknown: Why it is unknown; "" if it is known.
    """

    log_prob_difference: float | None
    why_unknown: str = ""


@dataclass(frozen=True)
class Difference:
    """The first difference between two answers to one prompt.

    Attributes:
        prompt_id: Name of the prompt.
        place: Position, such as "token 12" or "character 48".
        expected: Continuation of the control, shortened.
        actual: Continuation of the other answer, shortened.
        margin: Margin of the control; None if the difference is not one of tokens, as after an error.
    """

    prompt_id: str
    place: str
    expected: str
    actual: str
    margin: Margin | None

    @property
    def size(self) -> float | None:
        """Absolute margin; infinite if the difference is not one of tokens, None if it is unknown."""
        if self.margin is None:
            return math.inf
        known = self.margin.log_prob_difference
        return None if known is None else abs(known)


@dataclass(frozen=True)
class Arm:
    """Answers of one arm compared with the reference.

    Attributes:
        name: Name in the report.
        differences: First difference of each prompt, or None.
        missing: Indices of prompts that could not be compared.
        num_drafted: Number of proposed draft tokens; None if the server returns no counts or has no draft.
    """

    name: str
    differences: tuple[Difference | None, ...]
    missing: frozenset[int]
    num_drafted: int | None = None


@dataclass(frozen=True)
class Audit:
    """All arms of an audit.

    Attributes:
        noise: The control under the load of the candidate.
        candidates: The candidate, once for each load.
    """

    noise: Arm
    candidates: tuple[Arm, ...]
