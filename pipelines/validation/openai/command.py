"""``draftproof verify --against URL --control URL``: compare two OpenAI-compatible servers of any kind.

Exit codes, last line and page are those of ``draftproof verify``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pipelines.command_line.options import Progress, whole_number
from pipelines.command_line.prompt_choice import add_prompts_option, choose_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.reporting.conditions import conditions
from pipelines.validation.openai.endpoint import CANDIDATE_KEY, CONTROL_KEY, Endpoint, read_fields, read_key
from pipelines.validation.openai.sampled import NUM_PROMPTS
from pipelines.validation.openai.server import OpenAIServer
from pipelines.validation.openai.verify import Comparison, compare_servers
from pipelines.validation.report import Report
from pipelines.validation.runs import Conditions

_NUM_PROMPTS = 320
_MAX_TOKENS = 128
_TIMEOUT_S = 600.0


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Return whether a command line of ``draftproof verify`` names a control."""
    return any(each == "--control" or each.startswith("--control=") for each in arguments)


def parser() -> argparse.ArgumentParser:
    """Return the parser of this form of the command."""
    made = argparse.ArgumentParser(
        prog="draftproof verify --control",
        allow_abbrev=False,  # --key would be --key-file, whose argument an error quotes
        description="Compare two OpenAI-compatible servers: one with speculation and one without.",
        epilog=f"API keys are read from files or from {CANDIDATE_KEY} and {CONTROL_KEY}.",
    )
    made.add_argument("--against", metavar="URL", required=True, help="server with speculation")
    made.add_argument("--control", metavar="URL", required=True, help="server without; may be the same")
    made.add_argument("--model", default="", help="model of the first (default: the only one)")
    made.add_argument("--control-model", default="", help="model of the control (default: the only one)")
    made.add_argument("--key-file", type=Path, help="file with the API key of the first server")
    made.add_argument("--control-key-file", type=Path, help="file with the API key of the control")
    made.add_argument(
        "--fields",
        type=_fields,
        default={},
        metavar="JSON",
        help="fields of each request to the first server, such as its switch of speculation",
    )
    made.add_argument(
        "--control-fields", type=_fields, default={}, metavar="JSON", help="fields of each one to the control"
    )
    add_prompts_option(made)
    made.add_argument(
        "--num-prompts", type=whole_number(1), default=_NUM_PROMPTS, help="prompts (%(default)s)"
    )
    made.add_argument(
        "--max-tokens", type=whole_number(1), default=_MAX_TOKENS, help="tokens per answer (%(default)s)"
    )
    made.add_argument(
        "--num-at-once", type=whole_number(2), default=8, help="concurrent requests of the load (%(default)s)"
    )
    made.add_argument(
        "--sampled",
        type=whole_number(0),
        default=0,
        metavar="N",
        help=f"also compare N sampled answers to each of {NUM_PROMPTS} prompts, such as 1000",
    )
    made.add_argument(
        "--timeout-s", type=float, default=_TIMEOUT_S, help="longest silence of a server (%(default)s)"
    )
    made.add_argument(
        "--expect",
        choices=("audit", "exact"),
        default="audit",
        help="audit: distinguish ties from faults if results depend on the batch; exact: require equality",
    )
    made.add_argument("--html", type=Path, help="page for the report (default: .run/verify.html)")
    return made


def prompts_of(options: argparse.Namespace) -> Prompts:
    """Return the prompts to ask.

    Raises:
        InvalidRequestError: They cannot be read.
    """
    return choose_prompts(options.prompts, "").for_judging().draw(options.num_prompts)


def endpoints_of(options: argparse.Namespace) -> tuple[Endpoint, Endpoint]:
    """Return control and candidate.

    Raises:
        InvalidRequestError: An address or a key cannot be used.
    """
    control_key = read_key(options.control_key_file, CONTROL_KEY)
    key = read_key(options.key_file, CANDIDATE_KEY)
    return (
        Endpoint.of(options.control, options.control_model, control_key, options.control_fields),
        Endpoint.of(options.against, options.model, key, options.fields),
    )


def verify(
    options: argparse.Namespace,
    prompts: Prompts,
    endpoints: tuple[Endpoint, Endpoint],
    command_line: list[str],
) -> tuple[Report, Conditions]:
    """Compare the two servers.

    Raises:
        DraftproofError: One of them does not answer, or they cannot be compared.
    """
    for sentence in prompts.lines():
        print(sentence, flush=True)
    line = Progress()
    comparison = Comparison(
        prompts.all, options.max_tokens, options.num_at_once, options.sampled, options.expect
    )
    with ExitStack() as stack:
        control, candidate = (OpenAIServer(endpoint, options.timeout_s) for endpoint in endpoints)
        stack.callback(control.close)
        stack.callback(candidate.close)
        sections = compare_servers(
            comparison,
            control,
            candidate,
            lambda name, num_done: line.show(f"{name}: {num_done}"),
        )
    line.clear()
    context = conditions(
        "pipelines.validation",
        command_line,
        recipe=f"{options.against} beside {options.control}",
        engines={"control": control.description, "candidate": candidate.description},
        prompts=prompts.document(),
    )
    return Report(tuple(sections)), context


def _fields(text: str) -> dict[str, object]:
    try:
        return read_fields(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object: {error}") from None
