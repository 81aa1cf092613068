"""Judge the answers of an OpenAI-compatible server by a control's, which are in a baseline.

The candidate answers the control's questions one at a time, under load and in streams. The audit of first
divergences judges it (``pipelines/validation/audit.py``).
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pipelines.bench.reporting.section import Section
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.audit import Audit, judge
from pipelines.validation.differences import Comparison
from pipelines.validation.openai.baseline import Answers, Baseline, answer_or_error
from pipelines.validation.openai.comparing import as_streamed, compare_answers
from pipelines.validation.openai.feature_choice import refused_features
from pipelines.validation.openai.sampled import compare_samples
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer
from pipelines.validation.openai.unjudged import compares_streams, failures, features, not_checked
from pipelines.validation.stopping import StoppedError, pause, stop_error

_COUNTS_WITHIN_S = 120.0
Expect = Literal["audit", "exact"]
"""audit: results may depend on the batch; exact: answers must be equal."""


def compare(
    baseline: Baseline, candidate: OpenAIServer, expect: Expect, on_answer: OnAnswer
) -> list[Section]:
    """Ask a candidate all questions of a baseline, and judge its answers.

    Args:
        baseline: The control's answers.
        candidate: The server to judge.
        expect: How to judge differences.
        on_answer: Called after each answer.

    Returns:
        Whether it was stopped early, the noise floor and a section for each load of the candidate, the same
        for features, sampled answers, what went wrong, and what was not checked.

    Raises:
        VerificationError: The candidate cannot be asked the same questions.
    """
    _check_paths([question.prompt for question in baseline.plain.questions], baseline, candidate)
    with_ids = baseline.abilities.token_ids and candidate.abilities.token_ids
    load = baseline.settings.num_at_once

    def ask(name: str, control: Answers, num_at_once: int, *, stream: bool = False) -> Comparison:
        """Ask the candidate the control's questions and compare its answers with the control's."""
        name = f"{name} x{num_at_once}{', streamed' if stream else ''}"
        before = candidate.draft_tokens()
        asked = partial(candidate.ask, stream=stream)
        answers = ask_each(name, asked, control.questions, num_at_once, on_answer)
        num_drafted = _num_drafted(candidate, before)
        expected = _streamed(control) if stream else _alone(control)
        compared = compare_answers(name, control.questions, expected, answers, with_ids=with_ids)
        return replace(compared, num_drafted=num_drafted)

    def ask_under_load(name: str, control: Answers) -> Iterator[Comparison]:
        yield ask(name, control, load)
        if compares_streams(baseline, candidate):
            yield ask(name, control, load, stream=True)

    name, control = "candidate", baseline.plain
    plain = Audit(control.noise, (ask(name, control, 1), *ask_under_load(name, control)))
    audits, judged = [plain], judge(plain, exact=expect == "exact")
    refused = refused_features(candidate, baseline.featured.questions)
    featured = _without(baseline.featured, refused)
    if featured.questions:
        of_features = Audit(featured.noise, tuple(ask_under_load("candidate, features", featured)))
        audits.append(of_features)
        judged += [*judge(of_features, exact=expect == "exact"), features(featured, of_features)]
    notes = [f"{feature}: the candidate refuses it: {why}" for feature, why in refused.items()]
    if baseline.samples and candidate.abilities.token_ids:
        judged += compare_samples(baseline.samples, candidate, load, on_answer)
    else:
        notes.append("sampled answers, which --sampled compares if both servers return token ids")
    if any(compared.num_drafted is None for compared in plain.candidates):
        notes.append("whether the candidate drafted anything: its metrics do not say")
    sections = [*judged, failures(baseline, candidate), not_checked(baseline, candidate, notes)]
    return [_stopped(audits, stopped), *sections] if (stopped := stop_error()) else sections


def _stopped(audits: Sequence[Audit], error: StoppedError) -> Section:
    compared = [each for audit in audits for each in audit.candidates]
    num_asked = sum(len(each.differences) for each in compared)
    num_compared = num_asked - sum(len(each.missing) for each in compared)
    rest = f"{num_compared} of {num_asked} comparisons were finished; the rest was not asked"
    return Section("Stopped early", "inconclusive", f"{error}; {rest}")


def _alone(control: Answers) -> list[Answer | DraftproofError]:
    return list(map(answer_or_error, control.alone))


def _streamed(control: Answers) -> list[Answer | DraftproofError]:
    if not control.streamed:
        return _alone(control)
    return [
        as_streamed(whole, streamed)
        for whole, streamed in zip(_alone(control), map(answer_or_error, control.streamed), strict=True)
    ]


def _without(control: Answers, features: Container[str]) -> Answers:
    """Return answers without those to questions about some features."""
    kept = [number for number, question in enumerate(control.questions) if question.feature not in features]
    noise = control.noise
    return Answers(
        tuple(control.questions[number] for number in kept),
        tuple(control.alone[number] for number in kept),
        tuple(control.streamed[number] for number in kept) if control.streamed else (),
        replace(
            noise,
            differences=tuple(noise.differences[number] for number in kept),
            missing=frozenset(place for place, number in enumerate(kept) if number in noise.missing),
        ),
    )


def _num_drafted(candidate: OpenAIServer, before: int | None) -> int | None:
    """Return the number of tokens drafted since a count, which servers may publish after the answers."""
    gives_up_at_s = time.monotonic() + _COUNTS_WITHIN_S
    after = candidate.draft_tokens()
    while before is not None and after == before and time.monotonic() < gives_up_at_s and not stop_error():
        pause(0.5)
        after = candidate.draft_tokens()
    return None if before is None or after is None else after - before


def _check_paths(prompts: Sequence[Prompt], baseline: Baseline, candidate: OpenAIServer) -> None:
    """Refuse prompts that the servers would be asked in different ways, or cannot be asked."""
    has_chats = any(prompt.messages for prompt in prompts)
    both = baseline.abilities, candidate.abilities
    if (has_chats and not all(each.chat for each in both)) or both[0].completions != both[1].completions:
        able = (
            f"{name}: texts {abilities.completions}, chats {abilities.chat}"
            for name, abilities in zip(("control", candidate.url), both, strict=True)
        )
        raise VerificationError(
            f"the two servers cannot be asked the same: {', '.join(able)}",
            "give both the same chat template, or other prompts",
        )
