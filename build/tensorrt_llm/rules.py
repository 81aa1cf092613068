"""A rule of the pre-flight: what it is called, where it comes from, how a pair is checked against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from build.tensorrt_llm.pair import Pair
from pipelines.errors import DraftproofError


@dataclass(frozen=True)
class Broken:
    """How a pair breaks a rule.

    Attributes:
        role: ``draft``, ``target`` or ``pair``.
        what: What is wrong, one clause.
        values: What was seen.
        limit: What it must be.
        remedy: What to change.
    """

    role: str
    what: str
    values: str
    limit: str
    remedy: str

    def error(self, kind: type[DraftproofError]) -> DraftproofError:
        """For those who stop at the first."""
        return kind(self.what, values=self.values, limit=self.limit, remedy=self.remedy)


@dataclass(frozen=True)
class Rule:
    """A rule of the pre-flight.

    Attributes:
        name: Its identity in reports.
        source: Where it stands; ``(reading)`` where it was inferred from code.
        check: Gives each way in which a pair breaks it.
    """

    name: str
    source: str
    check: Callable[[Pair], Iterable[Broken]]


@dataclass(frozen=True)
class Finding:
    """A rule that a pair breaks, and how."""

    rule: str
    source: str
    broken: Broken

    def __str__(self) -> str:
        broken = self.broken
        return "\n".join(
            [
                f"{self.rule} ({broken.role}): {broken.what}",
                f"    values  {broken.values}",
                f"    limit   {broken.limit}",
                f"    remedy  {broken.remedy}",
                f"    source  {self.source}",
            ]
        )

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        broken = self.broken
        return {
            "rule": self.rule,
            "role": broken.role,
            "what": broken.what,
            "values": broken.values,
            "limit": broken.limit,
            "remedy": broken.remedy,
            "source": self.source,
        }


def findings(pair: Pair, rules: Iterable[Rule]) -> list[Finding]:
    """Check a pair against every rule; one that is broken does not hide the next."""
    return [Finding(rule.name, rule.source, broken) for rule in rules for broken in rule.check(pair)]
