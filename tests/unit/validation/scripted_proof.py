"""Runs the proof of equality on scripted servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.exact.plan import (
    ADAPTIVE,
    NUM_COMBINATIONS,
    DraftLength,
    Limits,
    Pass,
    ProofPlan,
    Question,
    pass_of,
    questions_of,
)
from pipelines.validation.exact.proof import prove
from pipelines.validation.exact.verdict import Proof
from tests.unit.client.scripted_client import Change, ScriptedClient

MAX_TOKENS = 12
PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(6))
LIMITS = Limits(2, 5, DraftLength.of_server(ADAPTIVE))
PLAN = ProofPlan(PROMPTS, LIMITS, max_rate=0.5, mean_gap_s=0.0)
RIGHT: Change = lambda request, model, given: given  # noqa: E731


def schedule(plan: ProofPlan) -> dict[Pass, tuple[Question, ...]]:
    passes = [pass_of(plan, number) for number in range(NUM_COMBINATIONS)]
    return {asked: questions_of(plan, asked, 0, len(PROMPTS), MAX_TOKENS, "nonce") for asked in passes}


def run(change: Change = RIGHT, plan: ProofPlan = PLAN, client: Any = None) -> Proof:
    client = client or ScriptedClient(change)
    return Proof(prove(plan, schedule(plan).items(), "nonce", client), plan.max_rate)


def change_of(
    change: Callable[[Generation], Generation],
    wanted: Callable[[CompletionRequest], object] = lambda request: True,
) -> Change:
    """Change answers of ``generate`` to some requests, but not to those that warm the cache."""

    def apply(request: CompletionRequest, model: str, given: Generation) -> Generation:
        is_compared = model == SPECULATIVE and request.max_tokens == MAX_TOKENS
        return change(given) if is_compared and wanted(request) else given

    return apply


def raising(error: DraftproofError) -> Callable[[Generation], Generation]:
    def fail(given: Generation) -> Generation:
        raise error

    return fail


def with_token(place: int, token_id: int) -> Callable[[Generation], Generation]:
    def slip(given: Generation) -> Generation:
        return replace(
            given, output_ids=(*given.output_ids[:place], token_id, *given.output_ids[place + 1 :])
        )

    return slip


def by_default(request: CompletionRequest) -> bool:
    return request.num_draft_tokens is None


def when(wanted: Callable[[CompletionRequest, str], object], **changes: Any) -> Change:
    def apply(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, **changes) if wanted(request, model) else given

    return apply
