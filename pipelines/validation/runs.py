"""Run the proof on a server of ours."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.bench.reporting.section import Section
from pipelines.client import Client, CompletionRequest
from pipelines.client.connection import SPECULATIVE
from pipelines.client.workers import Workers
from pipelines.command_line.options import Progress
from pipelines.command_line.prompt_lengths import fitting_prompts
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.errors import DraftproofError
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.distribution import sections as distribution_sections
from pipelines.validation.distribution.drawing import DrawPlan, draw
from pipelines.validation.exact.plan import LOADS
from pipelines.validation.exact.run import LEAST_PROMPTS, Limits, Size, read_limits, run_exact
from pipelines.validation.report import Report
from pipelines.validation.stopping import StoppableClient

Conditions = dict[str, Any]
_PROGRAM = "pipelines.validation"
_FIRST_LINE_TOKENS = 64
"""More than the first line that makes a cold prompt different from all earlier ones (``exact/plan.py``)."""


@dataclass(frozen=True)
class Own:
    """A proof on a server of ours.

    Attributes:
        url: Address of the server.
        recipe: Recipe of the server.
        size: Size of the proof.
        prompts: Prompts to draw from.
        only: "equality" or "distribution" for one of the two parts; "" for both.
    """

    url: str
    recipe: str
    size: Size
    prompts: Prompts
    only: str = ""


def verify_own(own: Own, command_line: list[str]) -> tuple[Report, Conditions]:
    """Prove equality and, in full size, test the distribution of unseeded answers.

    Raises:
        DraftproofError: The server cannot be reached or described.
    """
    nonce = secrets.token_hex(4)
    with ExitStack() as clients:
        connected = [clients.enter_context(Client.connect(own.url)) for _ in range(max(LOADS) + 1)]
        stoppable = [StoppableClient(client) for client in connected]
        engine_dirs = engine_directories(connected[0])
        used = _used_prompts(own, connected[0])
        for line in used.lines():
            print(line, flush=True)
        prompts = used.all
        context = conditions(
            _PROGRAM,
            command_line,
            recipe=own.recipe,
            triton_version=connected[0].server_version(),
            engines=engine_conditions(engine_dirs),
            prompts=used.document(),
            nonce=nonce,
        )
        anything = connected[0].generate(CompletionRequest("x", max_tokens=1), SPECULATIVE)
        limits = read_limits(connected[0].model_parameters("speculative"), anything.draft_length)
        vocabulary = _vocabulary(engine_dirs.get("target"))
        report = Report(())
        if own.only != "distribution":
            report = run_exact(own.size, prompts, limits, stoppable, vocabulary, nonce)
        if own.only != "equality" and own.size.num_for_distribution:
            report = report.with_sections(
                _test_distribution(prompts[: own.size.num_for_distribution], limits, stoppable)
            )
    return report, context


def _used_prompts(own: Own, client: Client) -> Prompts:
    num_more = own.size.max_tokens + _FIRST_LINE_TOKENS
    return fitting_prompts(own.prompts, client, num_more).draw(own.size.num_prompts, LEAST_PROMPTS)


def _test_distribution(
    prompts: tuple[Prompt, ...], limits: Limits, clients: list[StoppableClient]
) -> list[Section]:
    plan = DrawPlan(prompts, num_draft_tokens=min(DrawPlan.num_draft_tokens, limits.max_draft_len))
    line = Progress()
    workers = Workers([client.generate for client in clients[: plan.num_at_once]])
    draws = draw(plan, workers, lambda done, total: line.show(f"unseeded answers: {done}/{total}"))
    line.clear()
    return distribution_sections.judge(draws)


def _vocabulary(engine_dir: Path | None) -> Vocabulary | None:
    try:
        return Vocabulary.from_file(engine_dir / "tokenizer.json") if engine_dir else None
    except DraftproofError:  # the server runs on another machine, so the report shows token ids
        return None
