"""Verify any server with NVIDIA's tensor names, by the audit or by equality.

A section of its own lists what could not be checked there, so that a pass claims no more than it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.bench.reporting.section import Section
from pipelines.client.models import ModelCalls, ModelSpec, connect_to_models
from pipelines.client.workers import Workers
from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError, VerificationError
from pipelines.validation.audit.arms import AuditPlan, Margin, MarginOf, ask_all
from pipelines.validation.audit.audit import judge, judge_exact
from pipelines.validation.audit.nvidia_server import ForeignServer, ModelNames, Replay, TokenizerFile
from pipelines.validation.stopping import stoppable

Expectation = Literal["audit", "exact"]
NVIDIA = ModelNames()


@dataclass(frozen=True)
class Foreign:
    """A server of another kind and how to verify it.

    Attributes:
        url: Address as for ``Client.connect``.
        prompts: Prompts, at least one.
        names: Names of the server's models.
        expect: "audit" if kernels depend on the batch, "exact" to require equality.
        draft_lengths: Draft lengths, with one comparison each.
        max_tokens: Most output tokens per answer.
        num_at_once: Number of concurrent requests, except for the reference.
        tokenizer: ``tokenizer.json``; None for the server's model ``preprocessing``.
    """

    url: str
    prompts: tuple[Prompt, ...]
    names: ModelNames = NVIDIA
    expect: Expectation = "audit"
    draft_lengths: tuple[int, ...] = (4,)
    max_tokens: int = 64
    num_at_once: int = 8
    tokenizer: Path | None = None


def verify_foreign(
    foreign: Foreign,
    on_answer: Callable[[str, int], None] = lambda name, num_done: None,
    connect: Callable[[str], ModelCalls] = connect_to_models,
) -> list[Section]:
    """Compare the candidate with the control on one server.

    Args:
        foreign: Server and settings.
        on_answer: Called with the name of an arm and its number of answers so far.
        connect: Makes the connection of one worker.

    Returns:
        The noise floor, one section for each draft length, and what was not checked.

    Raises:
        DraftproofError: The server does not answer or lacks the models.
    """
    names = foreign.names
    servers = [ForeignServer(connect(foreign.url)) for _ in range(foreign.num_at_once)]

    def close() -> None:
        for server in servers:
            server.close()

    with Workers([stoppable(server.generate) for server in servers], close) as workers:
        candidate = _model(servers[0], names.candidate, "--model")
        _model(servers[0], names.control, "--control-model")
        plan = AuditPlan(
            prompts=foreign.prompts,
            max_tokens=foreign.max_tokens,
            control=names.control,
            candidate=names.candidate,
            # Without an input for the draft length, one comparison is enough.
            draft_lengths=foreign.draft_lengths[: None if "num_draft_tokens" in candidate.inputs else 1],
            num_at_once=foreign.num_at_once,
        )
        not_checked = dict(_not_checked(servers[0], foreign))
        audit = ask_all(
            plan,
            workers,
            _margin_of(servers[0], foreign),
            lambda: not any(names.candidate in server.silent_on_drafting for server in servers),
            on_answer,
        )
        for server in servers:
            not_checked.update(server.not_checked)
            if names.candidate in server.silent_on_drafting:
                not_checked[f"whether {names.candidate} drafted anything: it returns no counts"] = None
    sections = judge(audit) if foreign.expect == "audit" else judge_exact(audit)
    return [*sections, _not_checked_section(list(not_checked))]


def _model(server: ForeignServer, name: str, option: str) -> ModelSpec:
    try:
        return server.spec(name)
    except InvalidRequestError as error:
        raise VerificationError(
            "the server lacks a model to compare",
            values=str(error),
            limit=f"a model {name}",
            remedy=f"name another model with {option}",
        ) from error


def _margin_of(server: ForeignServer, foreign: Foreign) -> MarginOf:
    names = foreign.names
    if not server.has(names.engine):
        return lambda *_: Margin(None, f"the server has no model {names.engine} that returns logits")
    if foreign.tokenizer is not None:
        return Replay(server, names, TokenizerFile(foreign.tokenizer)).margin
    if not server.has(names.preprocessing):
        return lambda *_: Margin(None, f"the server has no model {names.preprocessing}: give --tokenizer")
    return Replay(server, names).margin


def _not_checked(server: ForeignServer, foreign: Foreign) -> dict[str, None]:
    notes = [
        "sampled answers: NVIDIA's loop repeats the seed every round, which changes their distribution",
        "penalties, stop words, bad words, biases, streaming and cancellation",
    ]
    for model in (foreign.names.control, foreign.names.candidate):
        spec = server.spec(model)
        if "output_ids" not in spec.outputs:
            notes.append(f"token ids: {model} returns only text, and different tokens can have the same text")
        if "finish_reason" not in spec.outputs:
            notes.append(f"why answers end: {model} returns no finish_reason")
    return dict.fromkeys(notes)


def _not_checked_section(notes: list[str]) -> Section:
    return Section("Not checked", "info", "; ".join(notes) + ".", document={"not_checked": notes})
