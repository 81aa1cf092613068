"""Prove on a running server that speculation changes no answer.

``python -m pipelines.validation --url grpc://127.0.0.1:8001 --prompts 16 --draft-lengths 0,1,2,4,8``

Exit codes: 0 all equal; 1 a difference, or nothing was tested; 2 wrong usage; 3 inconclusive: what was
compared is equal, but the server did not answer everything. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from pipelines.client import Client
from pipelines.client.at_once import Workers
from pipelines.command_line import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    Progress,
    add_server_options,
    whole_number,
    whole_numbers,
)
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.prompts import read_prompts
from pipelines.running_server import engine_directories, running_server
from pipelines.validation.margin import explain
from pipelines.validation.proof import Pass, PassResult, Plan, prove
from pipelines.validation.report import as_document, describe, table_head, table_row

_EXIT_CODES = {"pass": EXIT_PASS, "fail": EXIT_FAIL, "inconclusive": EXIT_INCONCLUSIVE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        plan = Plan(
            prompts=read_prompts(options.prompt_file, options.prompts),
            draft_lengths=options.draft_lengths,
            concurrency=options.concurrency,
            max_tokens=options.max_tokens,
            temperatures=tuple(dict.fromkeys(options.temperatures)),
        )
    except InvalidRequestError as error:
        parser.error(str(error))
    if options.prompts < max(options.concurrency):
        parser.error(f"{options.prompts} prompts cannot be {max(options.concurrency)} requests at once")
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with running_server(options.url, options.recipe) as url:
            return _verify(url, plan, options.recipe, command_line)
    except DraftproofError as error:
        print(f"inconclusive: {error}", file=sys.stderr)
        print(json.dumps({"verdict": "inconclusive", "error": str(error)}))
        return EXIT_INCONCLUSIVE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _verify(url: str, plan: Plan, recipe: str, command_line: list[str]) -> int:
    with Client.connect(url) as client:
        engine_dirs = engine_directories(client)
        context = conditions(
            "pipelines.validation",
            command_line,
            recipe=recipe,
            triton_version=client.server_version(),
            engines=engine_conditions(engine_dirs),
        )
    progress = Progress()

    def on_answer(asked: Pass, num_done: int) -> None:
        progress.show(f"{asked}: {num_done}/{len(plan.prompts)} answers")

    def on_pass(result: PassResult) -> None:
        progress.clear()
        print(table_row(result), flush=True)

    print(
        f"{len(plan.prompts)} prompts, {plan.max_tokens} tokens each; compared with the target alone, "
        f"asked {min(plan.concurrency)} at a time"
    )
    print(table_head(), flush=True)
    with Workers.connect(url, max(plan.concurrency), streaming=False) as workers:
        proof = prove(plan, workers, on_answer, on_pass)
    first = None
    if proof.findings:
        progress.show("looking up the logits at the first difference")
        first = proof.findings[0], explain(proof.findings[0], engine_dirs.get("target"))
        progress.clear()
        print(describe(*first))
    for reason in proof.failures():
        print(f"FAIL: {reason}")
    if proof.verdict == "inconclusive":
        print(f"INCONCLUSIVE: {proof.num_missing} answers could not be compared")
    if proof.verdict == "pass":
        print(f"PASS: {proof.num_answers} answers, {proof.num_tokens} tokens, all the target's own")
    print(json.dumps({**as_document(proof, first), "conditions": context}))
    return _EXIT_CODES[proof.verdict]


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 0,0.8") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.validation",
        description="Prove that generate gives the tokens of generate_target.",
    )
    add_server_options(parser)
    parser.add_argument("--prompts", type=whole_number(1), default=16, help="how many (%(default)s)")
    parser.add_argument(
        "--draft-lengths", type=whole_numbers(0), default=(0, 1, 2, 4, 8), help="such as 0,1,2,4,8 (default)"
    )
    parser.add_argument(
        "--concurrency", type=whole_numbers(1), default=(1, 8), help="requests at once, such as 1,8 (default)"
    )
    parser.add_argument("--max-tokens", type=whole_number(1), default=64, help="per answer (%(default)s)")
    parser.add_argument(
        "--temperatures", type=_temperatures, default=(0.0, 0.8), help="0 is greedy; 0,0.8 by default"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
