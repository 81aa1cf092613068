"""Prove on a server of ours that speculation changes no answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.bench.reporting.section import Section, Verdict
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE
from pipelines.command_line.prompt_lengths import fitting_prompts
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.time_left import duration
from pipelines.validation.asking import Stages
from pipelines.validation.distribution.drawing import NUM_PROMPTS, NUM_TOKENS, draw_from_own
from pipelines.validation.distribution.sections import judge
from pipelines.validation.exact.plan import LEAST_PROMPTS, Limits, ProofPlan
from pipelines.validation.exact.proof import prove
from pipelines.validation.exact.sections import exact_sections
from pipelines.validation.exact.timetable import Timetable
from pipelines.validation.exact.verdict import Proof
from pipelines.validation.size import MOST_PROMPTS, Size
from pipelines.validation.stopping import cancelled_when_stopped, stop_error

_FIRST_LINE_TOKENS = 64
"""More than the first line that makes a cold prompt different from all earlier ones (``exact/plan.py``)."""

_MOST_ANSWERS = 1000
"""Unseeded answers of each prompt and rule. With 500 a correct server was once barely inconclusive."""

_LEAST_ANSWERS = 600
"""Fewer would hardly show that the distributions are close."""


def verify_own(
    url: str,
    recipe: str,
    size: Size,
    ends_at_s: float,
    prompts: Prompts,
    only: str,
    command_line: Sequence[str],
) -> tuple[list[Section], dict[str, Any]]:
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
        The sections of the report and its conditions.

    Raises:
        DraftproofError: The server cannot be reached or described.
    """
    nonce = secrets.token_hex(4)
    with Client.connect(url) as client, cancelled_when_stopped(client.close):
        anything = client.generate(CompletionRequest("x", max_tokens=1), SPECULATIVE)
        limits = Limits.of(client.model_parameters("speculative"), anything.draft_length)
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
            engines=engine_conditions(engine_directories(client)),
            prompts=used.document(),
            nonce=nonce,
        )
        equality: list[Section] = []
        distribution: list[Section] = []
        num_answers, until_s = 0, ends_at_s
        asked = used.all[:NUM_PROMPTS], min(NUM_TOKENS - 1, limits.max_draft_len), client.generate
        if only != "equality":
            seconds = _seconds_of_an_answer(*asked)
            room_s = (ends_at_s - time.monotonic()) / (1 if only else 2)
            num_answers = int(min(_MOST_ANSWERS, room_s / seconds))
            if num_answers < _LEAST_ANSWERS:
                num_answers, distribution = 0, [_not_drawn(seconds, "inconclusive" if only else "info")]
            until_s -= seconds * num_answers
        if only != "distribution":
            plan = ProofPlan.of(used.all, limits, is_quick=size.is_quick)
            equality = prove_equality(plan, size, until_s, nonce, client)
        if num_answers:
            distribution = judge(draw_from_own(*asked, num_answers, Stages(2, ends_at_s)))
    return [*equality, *distribution], context


def prove_equality(
    plan: ProofPlan, size: Size, ends_at_s: float, nonce: str, client: Client
) -> list[Section]:
    """Compare answers token by token; arguments as of ``Timetable``."""
    timetable = Timetable(plan, size, ends_at_s, nonce)
    results = prove(plan, timetable, nonce, client, Stages(2 * timetable.num_most, ends_at_s))
    return exact_sections(Proof(results, plan.max_rate, timetable.max_tokens, stop_error()))


def _seconds_of_an_answer(
    prompts: Sequence[Prompt],
    num_draft_tokens: int,
    generate: Callable[[CompletionRequest, str], Generation],
) -> float:
    """Return how long an unseeded answer to all prompts by all rules takes, as two prompts show."""
    began_s = time.monotonic()
    draw_from_own(prompts[:2], num_draft_tokens, generate, 1)
    return (time.monotonic() - began_s) / 2 * len(prompts)


def _not_drawn(seconds: float, verdict: Verdict) -> Section:
    summary = (
        f"not tested: {_LEAST_ANSWERS} answers by each rule to each prompt, the least that shows something, "
        f"take {duration(seconds * _LEAST_ANSWERS)} at the speed of this server; --only distribution gives "
        "them all --minutes"
    )
    return Section("Distribution without a seed", verdict, summary)
