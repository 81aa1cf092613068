"""The two servers that verify examines: our own, in full, and another with NVIDIA's tensor names."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.client import Client, CompletionRequest
from pipelines.client.at_once import Workers
from pipelines.command_line import Progress
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError
from pipelines.prompts import Prompt
from pipelines.running_server import engine_directories
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation import distribution
from pipelines.validation.against import Foreign, verify_foreign
from pipelines.validation.drawing import DrawPlan, draw
from pipelines.validation.exact import run_exact
from pipelines.validation.plan import LOADS, SPECULATIVE
from pipelines.validation.report import Report
from pipelines.validation.section import Section
from pipelines.validation.sizes import Limits, Size, read_limits

Conditions = dict[str, Any]
_PROGRAM = "pipelines.validation"


@dataclass(frozen=True)
class Own:
    """What is asked of a server of ours.

    Attributes:
        url: Its address.
        recipe: Its recipe.
        size: How much is asked.
        prompts: ``size.num_prompts`` of them.
        only: "equality" or "law" for one of the two parts; "" for both.
    """

    url: str
    recipe: str
    size: Size
    prompts: tuple[Prompt, ...]
    only: str = ""


def verify_own(own: Own, command_line: list[str]) -> tuple[Report, Conditions]:
    """Equality token by token, acceptance, and, in full size, the law without a seed.

    Raises:
        DraftproofError: The server does not say what it is.
    """
    nonce = secrets.token_hex(4)
    with ExitStack() as clients:
        connected = [clients.enter_context(Client.connect(own.url)) for _ in range(max(LOADS) + 1)]
        engine_dirs = engine_directories(connected[0])
        context = conditions(
            _PROGRAM,
            command_line,
            recipe=own.recipe,
            triton_version=connected[0].server_version(),
            engines=engine_conditions(engine_dirs),
            nonce=nonce,
        )
        anything = connected[0].generate(CompletionRequest("x", max_tokens=1), SPECULATIVE)
        limits = read_limits(connected[0].model_parameters("speculative"), anything.draft_length)
        vocabulary = _vocabulary(engine_dirs.get("target"))
        report = Report(())
        if own.only != "law":
            report = run_exact(own.size, own.prompts, limits, connected, vocabulary, nonce)
        if own.only != "equality" and own.size.num_for_law:
            report = report.with_sections(_law(own.prompts[: own.size.num_for_law], limits, connected))
    return report, context


def verify_other(foreign: Foreign, command_line: list[str]) -> tuple[Report, Conditions]:
    """The audit, or equality, of a server that need not be ours.

    Raises:
        DraftproofError: It does not answer, or has not these models.
    """
    with Client.connect(foreign.url) as client:
        version = client.server_version()
    context = conditions(_PROGRAM, command_line, recipe=foreign.url, triton_version=version, engines={})
    line = Progress()
    sections = verify_foreign(
        foreign, lambda name, num_done: line.show(f"{name}: {num_done}/{len(foreign.prompts)}")
    )
    line.clear()
    return Report(tuple(sections)), context


def _law(prompts: tuple[Prompt, ...], limits: Limits, clients: list[Client]) -> list[Section]:
    plan = DrawPlan(prompts, num_draft_tokens=min(DrawPlan.num_draft_tokens, limits.max_draft_len))
    line = Progress()
    workers = Workers([client.generate for client in clients[: plan.num_at_once]])
    draws = draw(plan, workers, lambda done, total: line.show(f"answers without a seed: {done}/{total}"))
    line.clear()
    return distribution.judge(draws)


def _vocabulary(engine_dir: Path | None) -> Vocabulary | None:
    try:
        return Vocabulary.from_file(engine_dir / "tokenizer.json") if engine_dir else None
    except DraftproofError:  # the server runs on another machine: tokens are shown as ids
        return None
