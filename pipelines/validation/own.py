"""Prove on a server of ours that speculation changes no answer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client, CompletionRequest
from pipelines.client.connection import SPECULATIVE
from pipelines.command_line.prompt_lengths import fitting_prompts
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.errors import DraftproofError
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.asking import shown_progress
from pipelines.validation.distribution.drawing import DrawPlan, Draws, draw_from_own
from pipelines.validation.distribution.sections import judge
from pipelines.validation.exact.run import LEAST_PROMPTS, Limits, Size, read_limits, run_exact
from pipelines.validation.report import Report

_FIRST_LINE_TOKENS = 64
"""More than the first line that makes a cold prompt different from all earlier ones (``exact/plan.py``)."""


def verify_own(
    url: str, recipe: str, size: Size, prompts: Prompts, only: str, command_line: Sequence[str]
) -> tuple[Report, dict[str, Any]]:
    """Prove equality and, in full size, test the distribution of unseeded answers.

    Args:
        url: Address of the server.
        recipe: Recipe of the server.
        size: Size of the proof.
        prompts: Prompts to draw from.
        only: "equality" or "distribution" for one of the two parts; "" for both.
        command_line: Arguments of the command, for the report.

    Returns:
        The report and its conditions.

    Raises:
        DraftproofError: The server cannot be reached or described.
    """
    nonce = secrets.token_hex(4)
    with Client.connect(url) as client:
        engine_dirs = engine_directories(client)
        num_more = size.max_tokens + _FIRST_LINE_TOKENS
        used = fitting_prompts(prompts, client, num_more).draw(size.num_prompts, LEAST_PROMPTS)
        for line in used.lines():
            print(line, flush=True)
        context = conditions(
            "pipelines.validation",
            command_line,
            recipe=recipe,
            triton_version=client.server_version(),
            engines=engine_conditions(engine_dirs),
            prompts=used.document(),
            nonce=nonce,
        )
        anything = client.generate(CompletionRequest("x", max_tokens=1), SPECULATIVE)
        limits = read_limits(client.model_parameters("speculative"), anything.draft_length)
        report = Report(())
        if only != "distribution":
            vocabulary = _vocabulary(engine_dirs.get("target"))
            report = run_exact(size, used.all, limits, client, vocabulary, nonce)
        if only != "equality" and size.num_for_distribution:
            few = used.all[: size.num_for_distribution]
            sections = judge(_draw(few, limits, client))
            report = replace(report, sections=(*report.sections, *sections))
    return report, context


def _draw(prompts: tuple[Prompt, ...], limits: Limits, client: Client) -> Draws:
    plan = DrawPlan(prompts, num_draft_tokens=min(DrawPlan.num_draft_tokens, limits.max_draft_len))
    with shown_progress() as on_answer:
        return draw_from_own(plan, client.generate, on_answer)


def _vocabulary(engine_dir: Path | None) -> Vocabulary | None:
    try:
        return Vocabulary.from_file(engine_dir / "tokenizer.json") if engine_dir else None
    except DraftproofError:  # the server runs on another machine, so the report shows token ids
        return None
