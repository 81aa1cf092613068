"""Defines the result of a probe of the GPU day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The result of a probe.

    Attributes:
        verdict: ``pass``, ``fail`` or ``inconclusive``.
        text: One sentence.
        seen: Numbers and texts, ready for JSON.
    """

    verdict: str
    text: str
    seen: Mapping[str, Any] = field(default_factory=dict)
