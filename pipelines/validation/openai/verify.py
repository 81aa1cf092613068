"""Compare the answers of two OpenAI-compatible servers, one of them without speculation.

The control answers one prompt at a time (the reference) and under load (its noise); then the candidate does
the same, and once more in streams. The audit of first divergences judges the candidate
(``pipelines/validation/audit``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipelines.client import Generation
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, VerificationError
from pipelines.reporting.section import Section, Table
from pipelines.validation.audit.arms import Arm, Audit, compare_arm
from pipelines.validation.audit.audit import judge, judge_exact
from pipelines.validation.audit.noise_floor import LARGEST_ROUNDING
from pipelines.validation.openai.answers import Answer
from pipelines.validation.openai.asking import ask_each
from pipelines.validation.openai.margins import ControlMargins
from pipelines.validation.openai.noise import can_score, join_noise, score
from pipelines.validation.openai.sampled import can_sample, compare_samples
from pipelines.validation.openai.server import OpenAIServer

_COUNTS_WITHIN_S = 120.0
OnAnswer = Callable[[str, int], None]
"""(name of an arm, number of its answers so far), for progress."""


@dataclass(frozen=True)
class Comparison:
    """How to compare two servers.

    Attributes:
        prompts: Prompts, at least one.
        max_tokens: Most tokens of an answer.
        num_at_once: Number of concurrent requests of the load.
        num_sampled: Number of sampled answers to each of the first few prompts; 0 for none.
        expect: "audit" if results may depend on the batch, "exact" to require equality.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    num_at_once: int
    num_sampled: int = 0
    expect: Literal["audit", "exact"] = "audit"


def compare_servers(
    comparison: Comparison, control: OpenAIServer, candidate: OpenAIServer, on_answer: OnAnswer
) -> list[Section]:
    """Ask both servers all prompts, and judge the candidate.

    Args:
        comparison: What to ask.
        control: The server without speculation.
        candidate: The server to judge.
        on_answer: Called for progress.

    Returns:
        The noise floor, a section for each load of the candidate, sampled answers, what went wrong, and what
        was not checked.

    Raises:
        VerificationError: The control answered no prompt.
    """
    _check_paths(comparison.prompts, control, candidate)
    prompts, load = comparison.prompts, comparison.num_at_once
    with_ids = control.abilities.token_ids and candidate.abilities.token_ids
    margins = ControlMargins(control, comparison.max_tokens)

    def ask(
        name: str, server: OpenAIServer, num_at_once: int, *, stream: bool = False
    ) -> list[Answer | DraftproofError]:
        return ask_each(
            lambda prompt: server.ask(prompt, comparison.max_tokens, stream=stream),
            prompts,
            num_at_once,
            lambda num_done: on_answer(name, num_done),
        )

    def compare(name: str, answers: Sequence[Answer | DraftproofError]) -> Arm:
        return compare_arm(
            name, prompts, _comparable(reference, with_ids), _comparable(answers, with_ids), margins.margin
        )

    reference = ask("control, one at a time", control, 1)
    if not any(isinstance(answer, Answer) for answer in reference):
        raise VerificationError("the control answered no prompt", values=str(reference[0]))
    noise = compare(f"the control x{load}", ask(f"control x{load}", control, load))
    if can_score(control.abilities):
        noise = _with_scores(noise, control, prompts, reference, on_answer)
    arms = []
    streamed = [(load, True)] if candidate.abilities.streams else []
    for num_at_once, stream in ((1, False), (load, False), *streamed):
        name = f"candidate x{num_at_once}{', streamed' if stream else ''}"
        before = candidate.draft_tokens()
        answers = ask(name, candidate, num_at_once, stream=stream)
        arms.append(replace(compare(name, answers), num_drafted=_num_drafted(candidate, before)))
    audit = Audit(noise, tuple(arms))
    if comparison.expect == "exact":
        judged = judge_exact(audit)
    else:
        judged = judge(audit, largest_rounding=LARGEST_ROUNDING)
    samples = comparison.num_sampled > 0 and can_sample(control, candidate)
    if samples:
        judged += compare_samples(
            prompts,
            comparison.num_sampled,
            load,
            control,
            candidate,
            lambda num_done: on_answer("sampled answers of both", num_done),
        )
    failed = _requests_section(control, candidate)
    return [*judged, failed, _not_checked(audit, control, candidate, samples=samples)]


def _num_drafted(candidate: OpenAIServer, before: int | None) -> int | None:
    """Return the number of tokens drafted since a count, which servers may publish after the answers."""
    gives_up_at_s = time.monotonic() + _COUNTS_WITHIN_S
    after = candidate.draft_tokens()
    while before is not None and after == before and time.monotonic() < gives_up_at_s:
        time.sleep(0.5)
        after = candidate.draft_tokens()
    return None if before is None or after is None else after - before


def _with_scores(
    noise: Arm,
    control: OpenAIServer,
    prompts: Sequence[Prompt],
    reference: Sequence[Answer | DraftproofError],
    on_answer: OnAnswer,
) -> Arm:
    scored = []
    for prompt, answer in zip(prompts, reference, strict=True):
        scored.append(score(control, prompt, answer) if isinstance(answer, Answer) else None)
        on_answer("control, its own answers in one pass", len(scored))
    return join_noise(f"{noise.name}, or with its answer in one pass,", noise, scored)


def _comparable(
    answers: Sequence[Answer | DraftproofError], with_ids: bool
) -> list[Generation | DraftproofError]:
    return [
        answer.as_generation(with_ids=with_ids) if isinstance(answer, Answer) else answer
        for answer in answers
    ]


def _check_paths(prompts: Sequence[Prompt], control: OpenAIServer, candidate: OpenAIServer) -> None:
    """Refuse prompts that the servers would be asked in different ways, or cannot be asked."""
    has_chats = any(prompt.messages for prompt in prompts)
    both = control.abilities, candidate.abilities
    if (has_chats and not all(each.chat for each in both)) or both[0].completions != both[1].completions:
        raise VerificationError(
            "the two servers cannot be asked the same",
            values=", ".join(
                f"{server.url}: texts {server.abilities.completions}, chats {server.abilities.chat}"
                for server in (control, candidate)
            ),
            limit="both continue texts, or both do not; both answer chats if a prompt is one",
            remedy="give both the same chat template, or other prompts",
        )


def _requests_section(control: OpenAIServer, candidate: OpenAIServer) -> Section:
    servers = {"control": control, "candidate": candidate}
    rows = [
        (name, what, str(number))
        for name, server in servers.items()
        for what, number in server.failures.most_common()
    ]
    retries = sum(server.num_retries for server in servers.values())
    count = sum(sum(server.failures.values()) for server in servers.values())
    summary = (
        f"{count} requests without an answer that can be used, {retries} sent again because a server was "
        "busy. None of them is taken for equal."
    )
    document = {
        name: {"failures": dict(server.failures), "retries": server.num_retries}
        for name, server in servers.items()
    }
    table = Table(("server", "what went wrong", "requests"), tuple(rows)) if rows else None
    return Section("Requests that failed", "info", summary, table, document=document)


def _not_checked(audit: Audit, control: OpenAIServer, candidate: OpenAIServer, *, samples: bool) -> Section:
    notes = ["stop words, structured output, tools"]
    if not samples:
        notes.append("sampled answers, which --sampled compares if both servers return token ids")
    if not candidate.abilities.streams:
        notes.append("streams: the candidate has none")
    for name, server in (("control", control), ("candidate", candidate)):
        if not server.abilities.token_ids:
            notes.append(
                f"token ids: the {name} returns only text, and different tokens can have the same text"
            )
    if not control.abilities.log_probs:
        notes.append("ties: the control returns no log probabilities, so no difference is taken for rounding")
    if not can_score(control.abilities):
        notes.append(
            "rounding of passes with several positions: the control cannot score its own answers "
            "(return_token_ids, prompts of ids, echo)"
        )
    if any(arm.num_drafted is None for arm in audit.candidates):
        notes.append("whether the candidate drafted anything: its metrics do not say")
    rows = [
        (name, *(_shown(getattr(each.abilities, name)) for each in (control, candidate)))
        for name in vars(control.abilities)
    ]
    return Section(
        "Not checked",
        "info",
        f"Not checked here: {'; '.join(notes)}.",
        Table(("what a server can tell", "control", "candidate"), tuple(rows)),
        document={
            "not_checked": notes,
            "control": control.abilities.document(),
            "candidate": candidate.abilities.document(),
        },
    )


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)
