"""Talk to the target in a terminal: ``draftproof chat``.

It asks OpenAI's API of the running server, or starts one. Ctrl+C stops an answer and keeps what there is; at
the prompt it ends the program, as the end of the input does. In a pipe each line of the input is a message,
and the output is the answers alone. Answers are sampled as those of clients that send no sampling parameters.
An API key stands in DRAFTPROOF_API_KEY.

Exit codes: 0 done; 1 the server refused, failed or does not answer; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial

import httpx

from pipelines.command_line.live_text import LiveText, Segment
from pipelines.command_line.options import whole_number
from pipelines.command_line.running_server import local_server
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError, InvalidRequestError, ServerUnavailableError, TransportError
from pipelines.openai_stream import AnswerReader, Delta, UnreadableError
from pipelines.program import EXIT_PASS, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    text = "Talk to the target of a server; draft tokens are green on a terminal."
    parser = argparse.ArgumentParser(prog="draftproof chat", description=text)
    parser.add_argument("--url", default="", help="http://host:port of a server's OpenAI API")
    parser.add_argument("--recipe", default="", help="recipe of the server (default: of one that runs)")
    parser.add_argument("--system", default="", help="system prompt (default: none)")
    parser.add_argument("--max-tokens", type=whole_number(0), default=0, help="0: all that fit (%(default)s)")
    parser.add_argument("--temperature", type=float, help="0 is greedy (default: the server's)")
    return run_program(partial(_run, parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.url:
        return _converse(options, options.url)
    recipe = options.recipe or next((each.directory.name for each in Server.all_running()), "demo")
    with local_server(recipe, with_openai=True) as server:
        return _converse(options, server.openai_url)


def _converse(options: argparse.Namespace, url: str) -> int:
    key = os.environ.get("DRAFTPROOF_API_KEY", "")
    # A certificate is for the name that clients use, not for an address of this machine.
    is_here = httpx.URL(url).host in ("127.0.0.1", "::1")
    messages = [{"role": "system", "content": options.system}] if options.system else []
    with httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(None, connect=10.0),  # a long prompt is silent
        verify=not is_here,
        trust_env=False,
    ) as http:
        for line in filter(None, map(str.strip, _lines())):
            asked = {
                "messages": [*messages, {"role": "user", "content": line}],
                "max_tokens": options.max_tokens or None,
                "temperature": options.temperature,
            }
            live, said = LiveText(sys.stdout, margin=""), ""
            is_terminal = sys.stdin.isatty()
            try:
                with suppress(*[KeyboardInterrupt] * is_terminal), closing(_answer(http, asked)) as deltas:
                    for delta in deltas:
                        said += delta.text
                        runs = [Segment(text, source != "target") for source, text in delta.token_sources]
                        live.show(runs if sys.stdout.isatty() else [Segment(delta.text, is_accepted=False)])
            except DraftproofError as error:
                if not is_terminal:
                    raise
                print(f"error: {error}", file=sys.stderr)
            print(flush=True)
            if said:
                messages = [*asked["messages"], {"role": "assistant", "content": said}]
    return EXIT_PASS


def _answer(http: httpx.Client, asked: dict[str, object]) -> Generator[Delta, None, None]:
    """Stream an answer.

    Raises:
        DraftproofError: The server refused the request, failed, or does not answer.
    """
    reader = AnswerReader(is_stream=True)
    body = {**asked, "stream": True, "return_token_sources": True}
    try:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                raise InvalidRequestError(f"HTTP {response.status_code}: {response.read().decode()[:500]}")
            for data in response.iter_bytes():
                for event in reader.read(data):
                    if event.error:
                        raise TransportError(f"the answer broke off: {event.error}")
                    yield from event.deltas
            yield from (delta for event in reader.end() for delta in event.deltas)
    except httpx.HTTPError as error:
        raise ServerUnavailableError(f"{http.base_url} does not answer: {error!r}") from None
    except UnreadableError as error:
        raise TransportError(f"the server sent {error}") from None


def _lines() -> Iterator[str]:
    """Yield the lines of the input; on a terminal after a prompt, and with a history."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - input() uses it
    print("Ctrl+C stops an answer, Ctrl+D ends.", file=sys.stderr)
    with suppress(EOFError):
        while True:
            yield input("> ")
