"""The prompts and the conditions of a measurement on one server of a recipe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pipelines.bench.prompt_sets import PromptSet, make_prompt_sets
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories


def drawn_prompts(options: argparse.Namespace, count: int) -> tuple[Prompts, PromptSet]:
    """Draw prompts of the largest set, and make greedy requests of them.

    Args:
        options: ``prompts`` and ``recipe`` of the command line.
        count: Number of prompts.

    Raises:
        InvalidRequestError: There are too few.
    """
    judged = choose_prompts(options.prompts, options.recipe).for_judging().of_largest_set()
    prompts = judged.draw(count, least=count)
    (prompt_set,) = make_prompt_sets(prompts, tuple(prompts.sets), count, 0.0).values()
    return prompts, prompt_set


def server_conditions(
    program: str, command_line: Sequence[str], recipe: str, url: str, prompts: Prompts
) -> dict[str, Any]:
    """Collect the conditions of a measurement on a server, ready for JSON.

    Args:
        program: Module that runs.
        command_line: Its arguments.
        recipe: Recipe of the server.
        url: Address of the server.
        prompts: Prompts that are sent.

    Raises:
        DraftproofError: The server does not answer.
    """
    with Client.connect(url) as client:
        return conditions(
            program,
            command_line,
            recipe=recipe,
            triton_version=client.server_version(),
            engines=engine_conditions(engine_directories(client)),
            prompts=prompts.document(),
        )
