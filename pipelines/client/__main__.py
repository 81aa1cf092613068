"""Send a request to a Draftproof server from the command line.

``python -m pipelines.client --url grpc://127.0.0.1:8001 --max-tokens 64 --stream "def area(radius):"``

Exit codes: 0 answered; 1 the server refused, failed or does not answer; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.client.client import Client
from pipelines.client.connection import Timeouts, address_of
from pipelines.client.generation import Generation
from pipelines.errors import InvalidRequestError
from pipelines.program import EXIT_PASS, run_program
from pipelines.wire.request import CompletionRequest

_OTHERWISE = {
    *("prompt", "prompt_ids", "logit_bias", "guide", "num_log_probs"),
    *("resume_output_ids", "stop_token_ids"),  # for programs, which have the tokens
}
"""Fields that are no option, or not one that is made of their declaration."""

_TYPES: dict[str, Callable[[str], Any]] = {"INT32": int, "UINT64": int, "FP32": float, "BYTES": str}

DEFAULT_URL = "grpc://127.0.0.1:8001"  # Triton's own gRPC port on this machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        address_of(options.url)
        timeouts = Timeouts(connect_s=options.connect_timeout, total_s=options.timeout)
    except InvalidRequestError as error:
        parser.error(str(error))
    if not options.prompt and not options.prompt_ids:
        parser.error("a prompt or --prompt-ids is required")
    fields = {field.name for field in dataclasses.fields(CompletionRequest)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(options).items()
        if name in fields
    }
    given["prompt"] = sys.stdin.read() if options.prompt == "-" else options.prompt
    request = CompletionRequest(**given)

    def work() -> int:
        with Client.connect(options.url, timeouts) as client:  # interrupted, it cancels the request
            generation = _ask(client, request, options)
        if options.json:
            print(json.dumps(as_document(generation)))
        elif not options.stream:
            print(generation.text)
        return EXIT_PASS

    return run_program(work)


def as_document(generation: Generation) -> dict[str, Any]:
    """Return an answer with its derived figures, ready for JSON."""
    return {
        **dataclasses.asdict(generation),
        "itl_s": generation.itl_s,
        "acceptance_rate": generation.acceptance_rate,
        "mean_acceptance_length": generation.mean_acceptance_length,
    }


def _ask(client: Client, request: CompletionRequest, options: argparse.Namespace) -> Generation:
    if not options.stream:
        return client.generate(request, options.model)
    with client.stream(request, options.model) as stream:
        for chunk in stream:
            if not options.json:
                print(chunk.text, end="", flush=True)
        if not options.json:
            print()
        return stream.result()


def _parser() -> argparse.ArgumentParser:
    """Return the parser; options of a request have the names of its fields."""
    parser = argparse.ArgumentParser(
        prog="draftproof ask", description="Continue a text with a Draftproof server."
    )
    parser.add_argument("prompt", nargs="?", default="", help="text to continue; - reads standard input")
    parser.add_argument(
        "--prompt-ids", type=token_ids, default=(), metavar="ID,ID", help="tokens to continue, not a text"
    )
    parser.add_argument("--url", default=DEFAULT_URL, help="grpc://host:port (%(default)s)")
    parser.add_argument("--model", default="generate", help="generate, generate_target, router (%(default)s)")
    parser.add_argument("--stream", action="store_true", help="print text as it arrives")
    parser.add_argument(
        "--json", action="store_true", help="print the answer with its figures as one JSON line"
    )
    for field in dataclasses.fields(CompletionRequest):
        if field.name not in _OTHERWISE:
            _add_field(parser, field)
    parser.add_argument(
        "--logit-bias",
        action="append",
        type=logit_bias,
        default=[],
        metavar="ID=VALUE",
        help="value to add to the logit of a token; repeatable",
    )
    parser.add_argument(
        "--log-probs",
        dest="num_log_probs",
        type=int,
        metavar="N",
        help="return log probabilities with N alternatives; see --json",
    )
    parser.add_argument(
        "--guide",
        nargs=2,
        metavar=("TYPE", "TEXT"),
        help="the answer follows it: json_schema, regex, choice, ebnf_grammar, lark_grammar, or json ''",
    )
    limits = Timeouts()
    parser.add_argument(
        "--timeout", type=float, default=limits.total_s, help="seconds for the whole request (no limit)"
    )
    parser.add_argument(
        "--connect-timeout", type=float, default=limits.connect_s, help="seconds to connect (%(default)s)"
    )
    return parser


def _add_field(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    """Add the option of a field with one tensor, by its declaration."""
    (tensor,) = field.metadata["tensors"]
    option = f"--{field.name.replace('_', '-')}"
    text = tensor.effect.replace("`", "").replace("%", "%%")
    if tensor.datatype == "BOOL":
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=field.default, help=text)
        return
    text += f" ({tensor.limits})".replace("`", "")
    if tensor.is_list:
        parser.add_argument(option, metavar="TEXT", action="append", default=[], help=f"{text}; repeatable")
    else:
        text += " (%(default)s)" if field.default else ""
        parser.add_argument(option, type=_TYPES[tensor.datatype], default=field.default, help=text)


def token_ids(text: str) -> tuple[int, ...]:
    """Parse ``ID,ID``; argparse shows this function's name in its error message."""
    return tuple(int(token_id) for token_id in text.split(","))


def logit_bias(text: str) -> tuple[int, float]:
    """Parse ``ID=VALUE``; argparse shows this function's name in its error message."""
    token_id, _, value = text.partition("=")
    return int(token_id), float(value)


if __name__ == "__main__":
    sys.exit(main())
