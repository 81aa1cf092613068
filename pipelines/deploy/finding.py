"""One thing that ``make doctor`` looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: What.
        value: What was found.
        remedy: What to do; empty if all is well.
        stops: Targets that do not work because of it; empty for mere information.
    """

    name: str
    value: str
    remedy: str = ""
    stops: tuple[str, ...] = ()
