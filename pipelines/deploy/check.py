"""Describe what one check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: What was checked.
        value: What was found.
        remedy: What to do; empty if nothing is wrong.
        stops: Commands that do not work because of it; empty for a note.
        is_absent: Whether it is something that is not here and that few need.
    """

    name: str
    value: str
    remedy: str = ""
    stops: tuple[str, ...] = ()
    is_absent: bool = False
