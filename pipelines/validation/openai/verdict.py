"""Say in a sentence what a comparison found, with an example and a command that asks it again.

The sentence is for a reader who knows nothing of audits: what differs, in how many of how many, beside what
the control did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.bench.reporting.section import Verdict
from pipelines.validation.audit import KINDS as CLASSES
from pipelines.validation.differences import Difference
from pipelines.validation.openai.kinds import PLAIN
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.endpoint import CANDIDATE_KEY
from pipelines.validation.openai.server.server import OpenAIServer, Question
from pipelines.validation.openai.verify import Compared, Outcome, Way

_LONGEST_TEXT = 300
_MOST_KINDS = 3  # in a sentence
_SECONDS = 60.0  # of a minute


@dataclass(frozen=True)
class Tally:
    """Counts of the questions of one kind that were asked in one way.

    Attributes:
        kind: Kind of the questions.
        way: How they were asked.
        num: Number of questions.
        differences: Class of a difference -> the differences.
        num_noise: Number of those at which the control differs from itself.
    """

    kind: str
    way: Way
    num: int
    differences: dict[str, list[Difference]]
    num_noise: int

    @property
    def suspect(self) -> list[Difference]:
        """Differences that are no ties, the worst first."""
        return [each for name in CLASSES[:-1] for each in self.differences[name]]

    def __str__(self) -> str:
        failed = Counter(each.actual.partition(": http")[0] for each in self.suspect if each.place == "-")
        what = f"differ from the control's ({self.way.name})"
        if sum(failed.values()) == len(self.suspect):
            what = f"failed ({self.way.name}; {failed.most_common(1)[0][0].removeprefix('error: ')})"
        num = len(self.suspect)
        own = f"the control differs from itself in {self.num_noise}"
        return f"{num} of {self.num} {self.kind} {what}, {own}"


def tallies(ways: Sequence[Way]) -> list[Tally]:
    """Count the questions of each kind in each way."""
    made = []
    for way in ways:
        kinds = [question.kind for question in way.questions]
        for kind in dict.fromkeys(kinds):
            numbers = {number for number, each in enumerate(kinds) if each == kind}
            differences = {
                name: [
                    each
                    for number in found
                    if number in numbers and (each := way.compared.differences[number])
                ]
                for name, found in way.judged.by_kind.items()
            }
            num_noise = sum(way.noise.differences[number] is not None for number in numbers)
            made.append(Tally(kind, way, len(numbers), differences, num_noise))
    return made


def verdict_of(compared: Compared) -> Verdict:
    """Return the verdict of everything but the distribution of sampled answers."""
    verdicts = {way.judged.verdict for way in compared.ways}
    if compared.faults or "fail" in verdicts:
        return "fail"
    return "inconclusive" if compared.doubts or "inconclusive" in verdicts else "pass"


def sentence(compared: Compared, seconds: float) -> str:
    """Say what was found.

    Args:
        compared: What was compared.
        seconds: Time of all questions.
    """
    verdict, counted = verdict_of(compared), tallies(compared.ways)
    nums = {each.kind: each.num for each in counted}
    num_plain = nums.pop(PLAIN, 0)
    asked = f"{num_plain} plain answers and {sum(nums.values())} others of {len(nums)} kinds"
    if verdict == "pass":
        return f"no difference beyond the control's own in {asked}"
    blamed = [each for each in counted if each.suspect and (verdict != "fail" or each.way.judged.faults)]
    blamed.sort(key=lambda each: (-len(each.differences["fault"]), -len(each.suspect)))
    of_kind = {each.kind: str(each) for each in reversed(blamed)}  # the worst way of each kind
    seen = [of_kind[kind] for kind in dict.fromkeys(each.kind for each in blamed)]
    said, num_further = seen[:_MOST_KINDS], len(seen) - _MOST_KINDS
    if num_further > 0:
        said.append(f"{num_further} further kind{'s' * (num_further > 1)}")
    if verdict == "fail":
        ties = [reason for way in compared.ways for reason in way.judged.faults]
        return "; ".join([*compared.faults, *said] or ties)
    missing = max((way.judged.figures["missing"] for way in compared.ways), default=0)
    lost = [f"{missing} answers are missing"] if missing else []
    needed = max((way.judged.figures["needed"] for way in compared.ways), default=0)
    plan = f"too few to tell, about {needed} plain answers would decide"
    if num_plain:
        plan += f": --minutes {math.ceil(seconds / _SECONDS * needed / num_plain)}"
    return "; ".join([*(said or [f"no difference in {asked}"]), *lost, *compared.doubts, plan])


@dataclass(frozen=True)
class Found:
    """One difference.

    Attributes:
        way: Where it was found.
        number: Number of the question there.
        kind: Class of the difference.
        curl: Command that asks the question again.
    """

    way: Way
    number: int
    kind: str
    curl: str

    @property
    def question(self) -> Question:
        """The question."""
        return self.way.questions[self.number]

    @property
    def difference(self) -> Difference:
        """The difference."""
        difference = self.way.compared.differences[self.number]
        assert difference is not None
        return difference

    def document(self) -> dict[str, Any]:
        """Return the difference ready for JSON."""
        margin = self.difference.margin
        known = margin.log_prob_difference if margin else None
        return {
            "kind": self.question.kind,
            "asked": self.way.name,
            "class": self.kind,
            "prompt": self.question.prompt.prompt_id,
            "position": self.difference.place,
            "control": self.difference.expected,
            "candidate": self.difference.actual,
            "margin": known if known is not None and math.isfinite(known) else None,
            "why_unknown": margin.why_unknown if margin else "",
            "curl": self.curl,
        }

    def example(self) -> str:
        """Show both texts and the command, in lines."""
        own, other = (_text(each[self.number]) for each in (self.way.own, self.way.others))
        found = self.difference
        return "\n".join(
            [
                f"for example {self.question.prompt.prompt_id} ({self.way.name}), {found.place}:",
                f"  control:   {found.expected}{own}",
                f"  candidate: {found.actual}{other}",
                f"ask it again: {self.curl}",
            ]
        )


def found_in(compared: Compared, candidate: OpenAIServer, *, streams: bool) -> list[Found]:
    """Return all differences, the worst first, and of these the shortest prompts first.

    Args:
        compared: What was compared.
        candidate: The candidate.
        streams: Whether it was asked for streams under load.
    """
    made = []
    for way in compared.ways:
        for kind, numbers in way.judged.by_kind.items():
            for number in numbers:
                question = way.questions[number]
                how = {"stream": streams and not way.is_alone, "log_probs": question.log_probs == "both"}
                made.append(Found(way, number, kind, candidate.curl(question, key=CANDIDATE_KEY, **how)))
    return sorted(made, key=lambda each: (CLASSES.index(each.kind), len(each.curl)))


def _text(answer: Outcome) -> str:
    """Quote an answer; an error is told already."""
    if not isinstance(answer, Answer):
        return ""
    text = answer.whole_text
    return f" in {text[:_LONGEST_TEXT] + ('...' if len(text) > _LONGEST_TEXT else '')!r}"
