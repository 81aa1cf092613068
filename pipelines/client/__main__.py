"""Send a request to a Draftproof server from the command line.

``python -m pipelines.client --url grpc://127.0.0.1:8001 --max-tokens 64 "def area(radius):"``

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
        timeouts = Timeouts(total_s=options.timeout)
    except InvalidRequestError as error:
        parser.error(str(error))
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    request = CompletionRequest(prompt, **dict(options.field, max_tokens=options.max_tokens))

    def work() -> int:
        # Interrupted, it cancels the request.
        with Client.connect(options.url, timeouts) as client, client.stream(request, options.model) as stream:
            for chunk in stream:
                if not options.json:
                    print(chunk.text, end="", flush=True)
            print(json.dumps(as_document(stream.result())) if options.json else "")
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof ask", description="Continue a text with a Draftproof server, as it arrives."
    )
    parser.add_argument("prompt", help="text to continue; - reads standard input")
    parser.add_argument("--url", default=DEFAULT_URL, help="grpc://host:port (%(default)s)")
    parser.add_argument("--model", default="generate", help="generate, generate_target, router (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON line with figures instead")
    most = CompletionRequest("").max_tokens
    parser.add_argument("--max-tokens", type=int, default=most, help="of the answer (%(default)s)")
    parser.add_argument(
        *("--field", "-f"),
        type=field_of_request,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="another field of the request, such as temperature=0.5 or 'stop_words=[\"\\n\"]'; repeatable",
    )
    parser.add_argument("--timeout", type=float, help="seconds for the whole request (default: no limit)")
    return parser


def field_of_request(text: str) -> tuple[str, Any]:
    """Parse ``NAME=JSON``; argparse shows the error's message.

    Raises:
        argparse.ArgumentTypeError: There is no such field, or the value is not JSON.
    """
    name, _, value = text.partition("=")
    names = {field.name for field in dataclasses.fields(CompletionRequest)} - {"prompt", "max_tokens"}
    if name not in names:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(sorted(names))}")
    try:
        return name, _tuples(json.loads(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the value of {name} is not JSON: {error}") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
