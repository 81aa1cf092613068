"""Rules of preflight, and how violations are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from build.tensorrt_llm.pair import Pair


@dataclass(frozen=True)
class Violation:
    """A violation of a rule.

    Attributes:
        role: ``draft``, ``target`` or ``pair``.
        message: What is wrong and with which values, one clause.
        remedy: What to change.
    """

    role: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Rule:
    """A rule of preflight.

    Attributes:
        name: Its name in reports.
        source: Its source; ``(reading)`` if it was inferred from code.
        check: Return all violations of a pair.
    """

    name: str
    source: str
    check: Callable[[Pair], Iterable[Violation]]


def rule(name: str, source: str) -> Callable[[Callable[[Pair], Iterable[Violation]]], Rule]:
    """Make a rule of the function that checks it; see ``Rule``."""
    return lambda check: Rule(name, source, check)


@dataclass(frozen=True)
class Finding:
    """A violation, with the name and the source of its rule."""

    rule: str
    source: str
    violation: Violation

    def __str__(self) -> str:
        violation = self.violation
        return "\n".join(
            [
                f"{self.rule} ({violation.role}): {violation.message}",
                f"    remedy  {violation.remedy}",
                f"    source  {self.source}",
            ]
        )

    def as_dict(self) -> dict[str, str]:
        """Return this finding as a JSON object."""
        return {"rule": self.rule, **asdict(self.violation), "source": self.source}


def findings(pair: Pair, rules: Iterable[Rule]) -> list[Finding]:
    """Check a pair against all rules and return all violations."""
    return [Finding(rule.name, rule.source, violation) for rule in rules for violation in rule.check(pair)]
