"""Sections of the report that judge nothing: what failed, which features were asked, what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.bench.reporting.section import Section, Table
from pipelines.validation.audit.arms import Audit
from pipelines.validation.openai.baseline import Answers, Baseline, answer_or_error
from pipelines.validation.openai.feature_choice import checked
from pipelines.validation.openai.recording import can_score
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer


@dataclass(frozen=True)
class Unchecked:
    """Everything that a comparison left out because of the candidate.

    Attributes:
        refused: Name of a feature -> why the candidate refuses it.
        samples: Whether sampled answers were left out.
        drafts: Whether its metrics do not say if it drafted.
    """

    refused: Mapping[str, str]
    samples: bool
    drafts: bool


def failures(baseline: Baseline, candidate: OpenAIServer) -> Section:
    """Count the requests without an answer that can be used."""
    counts = {"control": baseline.failures, "candidate": candidate.failures}
    retries = {"control": baseline.num_retries, "candidate": candidate.num_retries}
    rows = [
        (name, what, str(number))
        for name, of_server in counts.items()
        for what, number in Counter(of_server).most_common()
    ]
    summary = (
        f"{sum(int(number) for *_, number in rows)} requests without an answer that can be used, "
        f"{sum(retries.values())} sent again because a server was busy. None of them is taken for equal."
    )
    document = {name: {"failures": dict(counts[name]), "retries": retries[name]} for name in counts}
    table = Table(("server", "what went wrong", "requests"), tuple(rows)) if rows else None
    return Section("Requests that failed", "info", summary, table, document=document)


def features(control: Answers, audit: Audit) -> Section:
    """Count questions, finished answers of the control, and differences by feature."""
    asked = Counter(question.feature for question in control.questions)
    finished: Counter[str] = Counter()
    for question, recorded in zip(control.questions, control.alone, strict=True):
        answer = checked(question, answer_or_error(recorded))
        finished[question.feature] += isinstance(answer, Answer) and answer.finish_reason != "length"
    different = {
        arm.name: Counter(
            question.feature
            for question, difference in zip(control.questions, arm.differences, strict=True)
            if difference is not None
        )
        for arm in audit.candidates
    }
    rows = tuple(
        (name, str(number), str(finished[name]), *(str(counts[name]) for counts in different.values()))
        for name, number in asked.items()
    )
    columns = ("feature", "questions", "ended by themselves", *(f"different: {arm}" for arm in different))
    document = {
        name: {
            "questions": number,
            "ended": finished[name],
            "different": {arm: counts[name] for arm, counts in different.items()},
        }
        for name, number in asked.items()
    }
    summary = (
        "JSON and arguments of required calls were checked against their schemas wherever an answer ended "
        "before its length; one that breaks its schema, or has its stop word, is a difference."
    )
    return Section("Features of requests", "info", summary, Table(columns, rows), document=document)


def compares_streams(baseline: Baseline, candidate: OpenAIServer) -> bool:
    """Return whether the candidate is asked for streams: unless neither server ends its own."""
    control, judged = baseline.abilities, candidate.abilities
    control_leaves_open = control.streams and not control.ends_streams
    return judged.streams and (judged.ends_streams or not control_leaves_open)


def not_checked(baseline: Baseline, candidate: OpenAIServer, unchecked: Unchecked) -> Section:
    """List what was not checked, and what both servers can tell."""
    able = {"control": baseline.abilities, "candidate": candidate.abilities}
    notes = list(baseline.not_checked)
    notes += [f"{name}: the candidate refuses it: {why}" for name, why in unchecked.refused.items()]
    if unchecked.samples:
        notes.append("sampled answers, which --sampled compares if both servers return token ids")
    if not able["candidate"].streams:
        notes.append("streams: the candidate has none")
    elif not compares_streams(baseline, candidate):
        notes.append("streams: both servers end them without data: [DONE], so a cut one would look whole")
    for name, abilities in able.items():
        if not abilities.token_ids:
            notes.append(
                f"token ids: the {name} returns only text, and different tokens can have the same text"
            )
    if not able["control"].log_probs:
        notes.append("ties: the control returns no log probabilities, so no difference is taken for rounding")
    if not can_score(able["control"]):
        notes.append(
            "rounding of passes with several positions: the control cannot score its own answers "
            "(return_token_ids, prompts of ids, echo)"
        )
    if unchecked.drafts:
        notes.append("whether the candidate drafted anything: its metrics do not say")
    rows = [
        (name, *(_shown(getattr(abilities, name)) for abilities in able.values()))
        for name in vars(baseline.abilities)
    ]
    return Section(
        "Not checked",
        "info",
        f"Not checked here: {'; '.join(notes)}." if notes else "Everything was checked.",
        Table(("what a server can tell", "control", "candidate"), tuple(rows)),
        document={"not_checked": notes, **{name: abilities.document() for name, abilities in able.items()}},
    )


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)
