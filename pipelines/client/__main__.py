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

_ABOUT_SPECIAL_TOKENS = {
    "add_special_tokens": "put BOS and the like before the prompt",
    "parse_special_tokens": "read names such as <|im_start|> in the prompt as special tokens",
    "skip_special_tokens": "leave special tokens out of the text",
}

_NUMBERS = {
    "max_tokens": "most output tokens",
    "temperature": "0 is greedy",
    "top_k": "0 means all tokens",
    "top_p": "in (0, 1]",
    "min_p": "in [0, 1]",
    "repetition_penalty": "above 0",
    "presence_penalty": "in [-2, 2]",
    "frequency_penalty": "in [-2, 2]",
    "min_tokens": "least output tokens",
}

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
    defaults = CompletionRequest("")
    parser = argparse.ArgumentParser(
        prog="draftproof ask", description="Continue a text with a Draftproof server."
    )
    parser.add_argument("prompt", nargs="?", default="", help="text to continue; - reads standard input")
    parser.add_argument(
        "--prompt-ids", type=token_ids, default=(), metavar="ID,ID", help="tokens to continue, not a text"
    )
    for name, text in _ABOUT_SPECIAL_TOKENS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            action=argparse.BooleanOptionalAction,
            default=getattr(defaults, name),
            help=text,
        )
    parser.add_argument("--url", default=DEFAULT_URL, help="grpc://host:port (%(default)s)")
    parser.add_argument("--model", default="generate", help="generate, generate_target, router (%(default)s)")
    parser.add_argument("--stream", action="store_true", help="print text as it arrives")
    parser.add_argument(
        "--json", action="store_true", help="print the answer with its figures as one JSON line"
    )
    for name, text in _NUMBERS.items():
        default = getattr(defaults, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{text} (%(default)s)"
        )
    for option, name, text in (
        ("--stop-word", "stop_words", "text before which the answer ends; repeatable"),
        ("--bad-word", "bad_words", "text that the answer must not contain; repeatable"),
    ):
        parser.add_argument(option, dest=name, metavar="TEXT", action="append", default=[], help=text)
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
        "--prompt-log-probs",
        dest="return_prompt_log_probs",
        action="store_true",
        help="return those of the prompt too; with --log-probs",
    )
    parser.add_argument(
        "--guide",
        nargs=2,
        metavar=("TYPE", "TEXT"),
        help="the answer follows it: json_schema, regex, choice, ebnf_grammar, lark_grammar, or json ''",
    )
    parser.add_argument(
        "--use-draft-logits", action="store_true", help="accept draft tokens by the ratio rule"
    )
    parser.add_argument("--seed", type=int, help="the same seed gives the same answer (default: random)")
    parser.add_argument("--end-id", type=int, help="token that ends the answer (default: the engine's)")
    parser.add_argument(
        "--prediction",
        default="",
        help="what the answer is expected to be, such as a file before an edit; drafts are looked up in it",
    )
    parser.add_argument(
        "--session-id",
        default="",
        help="requests of one session share draft statistics, earlier answers for lookups, and one arm",
    )
    parser.add_argument("--arm", default="", help="with --model router: stable, candidate or control")
    parser.add_argument(
        "--num-draft-tokens", type=int, help="draft tokens per round; 0 is off (default: the server's)"
    )
    limits = Timeouts()
    parser.add_argument(
        "--timeout", type=float, default=limits.total_s, help="seconds for the whole request (%(default)s)"
    )
    parser.add_argument(
        "--connect-timeout", type=float, default=limits.connect_s, help="seconds to connect (%(default)s)"
    )
    return parser


def token_ids(text: str) -> tuple[int, ...]:
    """Parse ``ID,ID``; argparse shows this function's name in its error message."""
    return tuple(int(token_id) for token_id in text.split(","))


def logit_bias(text: str) -> tuple[int, float]:
    """Parse ``ID=VALUE``; argparse shows this function's name in its error message."""
    token_id, _, value = text.partition("=")
    return int(token_id), float(value)


if __name__ == "__main__":
    sys.exit(main())
