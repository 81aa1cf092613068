"""Prove on a server of ours that speculation changes no answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.bench.reporting.section import Section, Verdict
from pipelines.client import Client, CompletionRequest
from pipelines.client.connection import SPECULATIVE
from pipelines.command_line.prompt_lengths import fitting_prompts, read_vocabulary
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.time_left import duration
from pipelines.validation.asking import Stages
from pipelines.validation.distribution.drawing import DrawPlan, draw_from_own
from pipelines.validation.distribution.sections import judge
from pipelines.validation.exact.run import LEAST_PROMPTS, Limits, read_limits, run_exact
from pipelines.validation.report import Report
from pipelines.validation.size import MOST_PROMPTS, Size
from pipelines.validation.stopping import cancelled_when_stopped

_FIRST_LINE_TOKENS = 64
"""More than the first line that makes a cold prompt different from all earlier ones (``exact/plan.py``)."""


def verify_own(
    url: str,
    recipe: str,
    size: Size,
    ends_at_s: float,
    prompts: Prompts,
    only: str,
    command_line: Sequence[str],
) -> tuple[Report, dict[str, Any]]:
    """Prove equality and, if there is time for it, test the distribution of unseeded answers.

    Args:
        url: Address of the server.
        recipe: Recipe of the server.
        size: What the user chose of the size of the proof.
        ends_at_s: Clock time at which the proof ends, in seconds of ``time.monotonic``.
        prompts: Prompts to draw from.
        only: "equality" or "distribution" for one of the two parts; "" for both.
        command_line: Arguments of the command, for the report.

    Returns:
        The report and its conditions.

    Raises:
        DraftproofError: The server cannot be reached or described.
    """
    nonce = secrets.token_hex(4)
    with Client.connect(url) as client, cancelled_when_stopped(client.close):
        engine_dirs = engine_directories(client)
        anything = client.generate(CompletionRequest("x", max_tokens=1), SPECULATIVE)
        limits = read_limits(client.model_parameters("speculative"), anything.draft_length)
        num_more = (size.max_tokens or limits.most_tokens) + _FIRST_LINE_TOKENS
        num_prompts = size.num_prompts or MOST_PROMPTS
        used = fitting_prompts(prompts, client, num_more).draw(num_prompts, LEAST_PROMPTS)
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
        report, until_s, draws = Report(()), ends_at_s, None
        sections: list[Section] = []
        if only != "equality":
            room_s = (ends_at_s - time.monotonic()) / (1 if only else 2)
            draws, seconds = _plan_draws(used.all, limits, client, room_s)
            if draws.num_answers < _LEAST_ANSWERS:
                draws, sections = None, [_not_drawn(seconds, "inconclusive" if only else "info")]
            else:
                until_s -= seconds * draws.num_answers
        if only != "distribution":
            vocabulary = read_vocabulary(engine_dirs.get("target"))
            report = run_exact(size, until_s, used.all, limits, client, vocabulary, nonce)
        if draws:
            sections = judge(draw_from_own(draws, client.generate, Stages(2, ends_at_s)))
    return replace(report, sections=(*report.sections, *sections)), context


_PROMPTS_TO_DRAW_FOR = 8
_LEAST_ANSWERS = 600
"""Least number of each prompt and rule; fewer would hardly show that the distributions are close."""


def _plan_draws(
    prompts: tuple[Prompt, ...], limits: Limits, client: Client, room_s: float
) -> tuple[DrawPlan, float]:
    """Plan as many unseeded answers as there is time for, after a few that show how long a round takes."""
    num_draft_tokens = min(DrawPlan.num_draft_tokens, limits.max_draft_len)
    plan = DrawPlan(prompts[:_PROMPTS_TO_DRAW_FOR], num_draft_tokens=num_draft_tokens)
    began_s = time.monotonic()
    draw_from_own(replace(plan, prompts=prompts[:2], num_answers=1), client.generate)
    seconds = (time.monotonic() - began_s) / 2 * len(plan.prompts)
    return replace(plan, num_answers=int(min(plan.num_answers, room_s / seconds))), seconds


def _not_drawn(seconds: float, verdict: Verdict) -> Section:
    summary = (
        f"not tested: {_LEAST_ANSWERS} answers by each rule to each prompt, the least that shows something, "
        f"take {duration(seconds * _LEAST_ANSWERS)} at the speed of this server; --only distribution gives "
        "them all --minutes"
    )
    return Section("Distribution without a seed", verdict, summary)
