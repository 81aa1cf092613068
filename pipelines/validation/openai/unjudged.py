"""Sections of the report that judge nothing: what failed, which features were asked, what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipelines.bench.reporting.section import Section, Table
from pipelines.validation.audit import Audit
from pipelines.validation.openai.baseline import Answers, Baseline, answer_or_error
from pipelines.validation.openai.feature_choice import checked
from pipelines.validation.openai.recording import can_score
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer


def failures(baseline: Baseline, candidate: OpenAIServer) -> Section:
    """Count the requests without an answer that can be used."""
    counts = {"control": baseline.failures, "candidate": candidate.failures}
    retries = {"control": baseline.num_retries, "candidate": candidate.num_retries}
    rows = [
        {"server": name, "what went wrong": what, "requests": number}
        for name, of_server in counts.items()
        for what, number in Counter(of_server).most_common()
    ]
    num_failed = sum(sum(of_server.values()) for of_server in counts.values())
    summary = (
        f"{num_failed} requests without an answer that can be used, {sum(retries.values())} sent again "
        "because a server was busy. None of them is taken for equal."
    )
    document = {name: {"failures": dict(counts[name]), "retries": retries[name]} for name in counts}
    return Section("Requests that failed", "info", summary, Table.of(rows), document=document)


def features(control: Answers, audit: Audit) -> Section:
    """Count questions, finished answers of the control, and differences by feature."""
    asked = Counter(question.feature for question in control.questions)
    finished: Counter[str] = Counter()
    for question, recorded in zip(control.questions, control.alone, strict=True):
        answer = checked(question, answer_or_error(recorded))
        finished[question.feature] += isinstance(answer, Answer) and answer.finish_reason != "length"
    different = {
        compared.name: Counter(
            question.feature
            for question, difference in zip(control.questions, compared.differences, strict=True)
            if difference is not None
        )
        for compared in audit.candidates
    }
    document: dict[str, dict[str, Any]] = {
        feature: {
            "questions": number,
            "ended": finished[feature],
            "different": {name: counts[feature] for name, counts in different.items()},
        }
        for feature, number in asked.items()
    }
    rows = [
        {
            "feature": feature,
            "questions": figures["questions"],
            "ended by themselves": figures["ended"],
            **{f"different: {name}": number for name, number in figures["different"].items()},
        }
        for feature, figures in document.items()
    ]
    summary = (
        "JSON and arguments of required calls were checked against their schemas wherever an answer ended "
        "before its length; one that breaks its schema, or has its stop word, is a difference."
    )
    return Section("Features of requests", "info", summary, Table.of(rows), document=document)


def compares_streams(baseline: Baseline, candidate: OpenAIServer) -> bool:
    """Return whether the candidate is asked for streams: unless neither server ends its own."""
    control, judged = baseline.abilities, candidate.abilities
    control_leaves_open = control.streams and not control.ends_streams
    return judged.streams and (judged.ends_streams or not control_leaves_open)


def not_checked(baseline: Baseline, candidate: OpenAIServer, more: Sequence[str]) -> Section:
    """List what was not checked, and what both servers can tell.

    Args:
        baseline: The control's answers.
        candidate: The server to judge.
        more: What the comparison left out because of the candidate.
    """
    control, judged = baseline.abilities, candidate.abilities
    notes = [*baseline.not_checked, *more]
    if not judged.streams:
        notes.append("streams: the candidate has none")
    elif not compares_streams(baseline, candidate):
        notes.append("streams: both servers end them without data: [DONE], so a cut one would look whole")
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
    summary = f"Not checked here: {'; '.join(notes)}." if notes else "Everything was checked."
    able = {"control": control.document(), "candidate": judged.document()}
    rows = [
        {"what a server can tell": name, "control": value, "candidate": able["candidate"][name]}
        for name, value in able["control"].items()
    ]
    return Section("Not checked", "info", summary, Table.of(rows), document={"not_checked": notes, **able})
