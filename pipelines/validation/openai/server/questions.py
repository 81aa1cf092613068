"""One request of a comparison, which both servers are asked alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.command_line.prompts import Prompt


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        prompt: A text to continue or a conversation to answer; its id names the question in reports.
        max_tokens: Most tokens of the answer.
        feature: Name of the feature that it uses (``features``); "" for a plain greedy answer.
        fields: Further fields of the request.
        with_log_probs: Whether the control is asked for log probabilities with it.
    """

    prompt: Prompt
    max_tokens: int
    feature: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    with_log_probs: bool = True
