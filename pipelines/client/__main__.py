"""Send a request to a Draftproof server from the command line.

``python -m pipelines.client --url grpc://127.0.0.1:8001 --max-tokens 64 --stream "def area(radius):"``

Exit codes: 0 answered; 1 the server refused, failed or does not answer; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from pipelines.client.client import Client
from pipelines.client.connection import Timeouts, address_of
from pipelines.client.generation import Generation
from pipelines.errors import InvalidRequestError
from pipelines.program import EXIT_PASS, run_program
from pipelines.wire.request import CompletionRequest

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
    given = dict(options.field, max_tokens=options.max_tokens, prompt_ids=options.prompt_ids)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    request = CompletionRequest(prompt, **given)

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
    most = CompletionRequest("").max_tokens
    parser.add_argument(
        "--max-tokens", type=int, default=most, help="most tokens of the answer (%(default)s)"
    )
    parser.add_argument(
        *("--field", "-f"),
        type=field_of_request,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="another field of the request, such as temperature=0.5 or 'stop_words=[\"\\n\"]'; repeatable",
    )
    limits = Timeouts()
    parser.add_argument(
        "--timeout", type=float, default=limits.total_s, help="seconds for the whole request (no limit)"
    )
    parser.add_argument(
        "--connect-timeout", type=float, default=limits.connect_s, help="seconds to connect (%(default)s)"
    )
    return parser


def token_ids(text: str) -> tuple[int, ...]:
    """Parse ``ID,ID``; argparse shows this function's name in its error message."""
    return tuple(int(token_id) for token_id in text.split(","))


def field_of_request(text: str) -> tuple[str, Any]:
    """Parse ``NAME=JSON``; argparse shows the error's message.

    Raises:
        argparse.ArgumentTypeError: There is no such field, or the value is not JSON.
    """
    name, _, value = text.partition("=")
    names = {field.name for field in dataclasses.fields(CompletionRequest)} - _OPTIONS
    if name not in names:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(sorted(names))}")
    try:
        return name, _tuples(json.loads(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the value of {name} is not JSON: {error}") from None


_OPTIONS = {"prompt", "prompt_ids", "max_tokens"}  # fields with an option of their own


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
