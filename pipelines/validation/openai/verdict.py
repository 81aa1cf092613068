"""Say in a sentence what a comparison found, and show what stands behind it.

The sentence is for a reader who knows nothing of audits: what differs, in how many of how many, beside what
the control did. An example of both texts follows, and a command that asks its question again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.bench.reporting.rates import upper_bound
from pipelines.bench.reporting.section import Section, Table, Verdict
from pipelines.validation.audit import ALPHA, CONFIDENCE, KINDS
from pipelines.validation.differences import Difference, table_of
from pipelines.validation.openai.baseline import Baseline
from pipelines.validation.openai.kinds import PLAIN, SAMPLED
from pipelines.validation.openai.recording import can_score
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.endpoint import CANDIDATE_KEY
from pipelines.validation.openai.server.server import Question
from pipelines.validation.openai.verify import Candidate, Compared, Outcome, Way, compares_streams

NEVER_ASKED = (
    "images and audio",
    "embeddings",
    "/v1/responses",
    "best_of and beams",
    "penalties and logit_bias",
    "regular expressions and grammars",
    "answers with a seed",
)
"""Parts of OpenAI's API that this command has no questions about."""

_MOST_DIFFERENCES = 200
_LONGEST_TEXT = 300
_SECONDS = 60.0  # of a minute


@dataclass(frozen=True)
class _Found:
    """A difference, with all that its report needs."""

    way: Way
    number: int
    kind: str

    @property
    def question(self) -> Question:
        return self.way.questions[self.number]

    @property
    def difference(self) -> Difference:
        difference = self.way.compared.differences[self.number]
        assert difference is not None
        return difference

    def curl(self, candidate: Candidate) -> str:
        stream = candidate.streams and not self.way.is_alone
        wants = self.question.log_probs == "both"
        return candidate.server.curl(self.question, stream=stream, log_probs=wants, key=CANDIDATE_KEY)

    def document(self, candidate: Candidate) -> dict[str, Any]:
        difference, margin = self.difference, self.difference.margin
        known = margin.log_prob_difference if margin else None
        return {
            "kind": self.question.kind,
            "asked": self.way.name,
            "class": self.kind,
            "prompt": self.question.prompt.prompt_id,
            "position": difference.place,
            "control": difference.expected,
            "candidate": difference.actual,
            "margin": known if known is not None and math.isfinite(known) else None,
            "why_unknown": margin.why_unknown if margin else "",
            "curl": self.curl(candidate),
        }


def report(
    baseline: Baseline, candidate: Candidate, compared: Compared, seconds: float, sampled: Sequence[Section]
) -> list[Section]:
    """Return the sections of the report, the verdict first.

    Args:
        baseline: The control's answers.
        candidate: The candidate.
        compared: What was found.
        seconds: Time of all questions.
        sampled: Sections about the distribution of sampled answers, if they were asked for.
    """
    listed = [
        _Found(way, number, kind)
        for kind in KINDS
        for way in compared.ways
        for number in way.judged.by_kind[kind]
    ]
    verdict = _verdict(compared)
    sentence = _sentence(verdict, compared, seconds)
    document = {
        "sentence": sentence,
        "faults": [
            *compared.faults,
            *(f"{way.judged.name}: {why}" for way in compared.ways for why in way.judged.faults),
        ],
        "doubts": [
            *compared.doubts,
            *(f"{way.judged.name}: {why}" for way in compared.ways for why in way.judged.doubts),
        ],
        "differences": [each.document(candidate) for each in listed[:_MOST_DIFFERENCES]],
        "num_differences": len(listed),
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
    }
    example = _example(listed[0], candidate) if listed else ""
    table = table_of([(each.difference, each.kind) for each in listed])
    return [
        Section("Verdict", verdict, sentence, document=document, example=example),
        _asked(compared),
        Section("Differences", "info", "The worst first; margins are top-2 gaps in nats.", table),
        _not_looked_at(baseline, candidate, compared, has_samples=bool(sampled)),
        *sampled,
    ]


def _verdict(compared: Compared) -> Verdict:
    verdicts = {way.judged.verdict for way in compared.ways}
    if compared.faults or "fail" in verdicts:
        return "fail"
    return "inconclusive" if compared.doubts or "inconclusive" in verdicts else "pass"


def _sentence(verdict: Verdict, compared: Compared, seconds: float) -> str:
    num_plain = _num_questions(compared, PLAIN)
    others = {question.kind for way in compared.ways for question in way.questions} - {PLAIN}
    num_others = sum(_num_questions(compared, kind) for kind in others)
    asked = f"{num_plain} plain answers and {num_others} of {len(others)} other kinds"
    if verdict == "pass":
        return f"no difference beyond the control's own in {asked}"
    if verdict == "fail":
        failing = [way for way in compared.ways if way.judged.faults]
        worst = [*_by_kind(failing, ("fault",)), *_by_kind(failing, ("fault", "non-tie", "unknown"))]
        described = list(dict(reversed([(kind, text) for kind, text in worst])).values())[::-1]
        return "; ".join([*described[:3], *compared.faults]) or failing[0].judged.faults[0]
    seen = [text for _, text in _by_kind(compared.ways, ("non-tie", "unknown"))] or [
        f"no difference in {asked}"
    ]
    needed = max((way.judged.figures["needed"] for way in compared.ways), default=0)
    plan = f"about {needed} plain answers would decide"
    if num_plain:
        plan += f": --minutes {math.ceil(seconds / _SECONDS * needed / num_plain)}"
    return "; ".join([*seen[:3], *compared.doubts, f"too few to tell, {plan}"])


def _num_questions(compared: Compared, kind: str) -> int:
    return max((sum(each.kind == kind for each in way.questions) for way in compared.ways), default=0)


def _by_kind(ways: Sequence[Way], classes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the kinds of questions that differ, and in how many of how many; those with most first."""
    counts: Counter[tuple[str, str]] = Counter()
    for way in ways:
        for each in classes:
            for number in way.judged.by_kind[each]:
                counts[way.questions[number].kind, way.name] += 1
    told = set()
    for (kind, name), num in counts.most_common():
        if kind in told:
            continue
        told.add(kind)
        (way,) = (
            way for way in ways if way.name == name and any(each.kind == kind for each in way.questions)
        )
        of_kind = [number for number, each in enumerate(way.questions) if each.kind == kind]
        num_noise = sum(way.noise.differences[number] is not None for number in of_kind)
        differ = [way.compared.differences[number] for number in of_kind]
        failed = Counter(each.actual.partition(": http")[0] for each in differ if each and each.place == "-")
        what = f"differ from the control's ({name})"
        if failed and sum(failed.values()) == num:
            what = f"failed ({name}; {failed.most_common(1)[0][0].removeprefix('error: ')})"
        yield (
            kind,
            f"{num} of {len(of_kind)} {kind} {what}; the control's own in {num_noise} of {len(of_kind)}",
        )


def _example(found: _Found, candidate: Candidate) -> str:
    difference = found.difference
    own, other = found.way.own[found.number], found.way.others[found.number]
    return "\n".join(
        [
            f"for example {found.question.prompt.prompt_id} ({found.way.name}), {difference.place}:",
            f"  control:   {difference.expected} in {_text(own)}",
            f"  candidate: {difference.actual} in {_text(other)}",
            f"ask it again: {found.curl(candidate)}",
        ]
    )


def _text(answer: Outcome) -> str:
    text = answer.whole_text if isinstance(answer, Answer) else str(answer)
    return repr(text[:_LONGEST_TEXT] + ("..." if len(text) > _LONGEST_TEXT else ""))


def _asked(compared: Compared) -> Section:
    """Show the questions of each kind, how many differ in each way, and which share would have been seen."""
    kinds = dict.fromkeys(question.kind for way in compared.ways for question in way.questions)
    names = dict.fromkeys(way.name for way in compared.ways)
    rows: list[dict[str, object]] = []
    for kind in kinds:
        row: dict[str, object] = {"kind": kind, "questions": _num_questions(compared, kind)}
        num_noise = 0
        for name in names:
            num = 0
            for way in compared.ways:
                here = [number for number, each in enumerate(way.questions) if each.kind == kind]
                if way.name == name:
                    num += sum(way.compared.differences[number] is not None for number in here)
                    num_noise = max(
                        num_noise, sum(way.noise.differences[number] is not None for number in here)
                    )
            row[f"differ {name}"] = num
        row["control's own"] = num_noise
        row["share seen with 95%"] = f"{upper_bound(0, _num_questions(compared, kind), CONFIDENCE):.1%}"
        rows.append(row)
    for num, greedy, who in ((*compared.sampled[0], "control"), (*compared.sampled[1], "candidate")):
        if num:
            rows.append(
                {**dict.fromkeys(rows[0], ""), "kind": f"{SAMPLED}, {who}: {greedy} of {num} are greedy"}
            )
    audits = {way.judged.name: dict(way.judged.figures) for way in compared.ways}
    limits = [way.judged.figures["tie_limit"] for way in compared.ways]
    known = [each for each in limits if each is not None]
    tie = (
        f"a tie is a top-2 gap of at most {max(known):.3g} nats" if known else "no difference counts as a tie"
    )
    summary = (
        f"Every question was asked one at a time and under load; {tie}, as the control's own differences say."
    )
    document = {"audits": audits, "kinds": rows, "sampled": compared.sampled}
    return Section("What was compared", "info", summary, Table.of(rows), document=document)


def _not_looked_at(
    baseline: Baseline, candidate: Candidate, compared: Compared, *, has_samples: bool
) -> Section:
    """List what was not looked at, what both servers can tell, and the requests that failed."""
    control, judged = baseline.abilities, candidate.server.abilities
    notes = [*baseline.not_checked, *compared.notes]
    if not has_samples:
        notes.append("the distribution of sampled answers, which --sampled compares if both return token ids")
    if not judged.streams:
        notes.append("streams: the candidate has none")
    elif not compares_streams(control, judged):
        notes.append("streams: both servers end them without data: [DONE], so a cut one would look whole")
    elif not (control.stream_usage and judged.stream_usage):
        notes.append("usage in streams: one of the servers does not tell it")
    notes += [
        f"token ids: the {name} returns only text, and different tokens can have the same text"
        for name, abilities in (("control", control), ("candidate", judged))
        if not abilities.token_ids
    ]
    if not control.log_probs:
        notes.append("ties: the control returns no log probabilities, so no difference is taken for rounding")
    if not can_score(control):
        notes.append(
            "rounding of passes with several positions: the control cannot score its own answers "
            "(return_token_ids, prompts of ids, echo)"
        )
    failures: Mapping[str, Mapping[str, int]] = {
        "control": baseline.failures,
        candidate.server.url: candidate.server.failures,
    }
    rows: list[dict[str, object]] = [
        {"what": name, "control": value, "candidate": judged.document()[name]}
        for name, value in control.document().items()
    ]
    rows += [
        {
            "what": f"failed requests: {what}",
            "control": counts.get(what, 0) if name == "control" else 0,
            "candidate": 0 if name == "control" else counts[what],
        }
        for name, counts in failures.items()
        for what in counts
    ]
    retries = baseline.num_retries, candidate.server.num_retries
    rows.append({"what": "requests sent again, busy", "control": retries[0], "candidate": retries[1]})
    document = {
        "not_checked": notes,
        "never_asked": list(NEVER_ASKED),
        "failures": {name: dict(counts) for name, counts in failures.items()},
        "retries": {"control": retries[0], "candidate": retries[1]},
        "control": control.document(),
        "candidate": judged.document(),
    }
    summary = f"This command never asks for {', '.join(NEVER_ASKED)}; nor were compared:"
    listed = "\n".join(f"- {note}" for note in notes)
    return Section("Not looked at", "info", summary, Table.of(rows), document=document, example=listed)
