"""Talk to the target in a terminal: ``draftproof chat``.

It asks the running server, or starts one. Ctrl+C stops an answer and keeps what there is; at the prompt it
ends the program, as the end of the input does. In a pipe each line of the input is a message, and the output
is the answers alone.

Exit codes: 0 done; 1 the server refused, failed or does not answer; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipelines.client import Client, CompletionRequest
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.live_text import LiveText, Segment, segments
from pipelines.command_line.options import whole_number
from pipelines.command_line.prompt_lengths import max_seq_len, read_tokenizer
from pipelines.command_line.prompts import TokenSwitches
from pipelines.command_line.running_server import running_server
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError
from pipelines.program import EXIT_PASS, run_program
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.text.prompt_tokenizer import PromptTokenizer

# The template writes special tokens, BOS among them.
_AS_RENDERED: TokenSwitches = {"add_special_tokens": False, "parse_special_tokens": True}
_HELP = "/compare: the target alone answers too; /reset [SYSTEM PROMPT]: a new conversation"


@dataclass
class Chat:
    """One conversation.

    Attributes:
        client: Client of the server.
        template: The target's chat template.
        tokenizer: Its tokenizer.
        sampling: Sampling parameters of each answer, with a seed; ``max_tokens`` 0 stands for all that fit.
        messages: What was said, after the system prompt, which may be "".
    """

    client: Client
    template: ChatTemplate
    tokenizer: PromptTokenizer
    sampling: CompletionRequest
    messages: list[dict[str, str]]
    _asked: CompletionRequest | None = None

    def answer(self, text: str) -> None:
        """Print the answer to a message, and remember both.

        Raises:
            DraftproofError: The server or the chat template refused, or failed.
        """
        said = [*self.messages, {"role": "user", "content": text}]
        asked = self._request(said)
        answered, is_whole = self._show(asked, SPECULATIVE)
        if answered:
            self.messages = [*said, {"role": "assistant", "content": answered}]
            self._asked = asked if is_whole else None

    def compare(self) -> None:
        """Print what the target alone answers to the last message, and whether it is the same."""
        if self._asked is None:
            return _say("there is no whole answer to compare")
        _say("the target alone:")
        alone, is_whole = self._show(self._asked, TARGET_ALONE)
        if is_whole:
            _say("the same text" if alone == self.messages[-1]["content"] else "THE TEXTS DIFFER")

    def _request(self, messages: list[dict[str, str]]) -> CompletionRequest:
        with ChatRenderer(self.template) as renderer:
            prompt = renderer.render(messages[not messages[0]["content"] :], add_generation_prompt=True)
        room = (max_seq_len(self.client) or 0) - len(self.tokenizer.encode(prompt, **_AS_RENDERED))
        most = self.sampling.max_tokens or max(room, 1)  # if there is no room, the server says so
        return replace(self.sampling, prompt=prompt, max_tokens=most, **_AS_RENDERED)

    def _show(self, request: CompletionRequest, model: str) -> tuple[str, bool]:
        """Print an answer as it arrives; returns its text and whether it is whole."""
        live, text, is_whole = LiveText(sys.stdout, margin=""), "", False
        is_marked = sys.stdout.isatty() and model == SPECULATIVE
        with suppress(KeyboardInterrupt), self.client.stream(request, model) as stream:
            for chunk in stream:
                text += chunk.text
                plain = [Segment(chunk.text, is_accepted=False)]
                live.show(segments(chunk, self.tokenizer.vocabulary) if is_marked else plain)
            is_whole = True
        print(flush=True)
        return text, is_whole

    def obey(self, line: str) -> None:
        """Answer a line, or do what it commands."""
        command, _, rest = line.partition(" ")
        if not command.startswith("/"):
            self.answer(line)
        elif command == "/compare":
            self.compare()
        elif command == "/reset":
            system = {"role": "system", "content": rest or self.messages[0]["content"]}
            self.messages, self._asked = [system], None
        else:
            _say(_HELP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    text = "Talk to the target of a server; draft tokens are green on a terminal."
    parser = argparse.ArgumentParser(prog="draftproof chat", description=text, epilog=_HELP)
    parser.add_argument("--url", default="", help="grpc://host:port, with DRAFTPROOF_KEY_FILE set")
    parser.add_argument("--recipe", default="", help="recipe of the server (default: of one that runs)")
    parser.add_argument("--system", default="", help="system prompt (default: none)")
    parser.add_argument("--max-tokens", type=whole_number(0), default=0, help="0: all that fit (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
    parser.add_argument("--compare", action="store_true", help="the target alone answers each message too")
    return run_program(partial(_converse, parser.parse_args(arguments)))


def _converse(options: argparse.Namespace) -> int:
    recipe = options.recipe or next((each.directory.name for each in Server.all_running()), "demo")
    given = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    sampling = CompletionRequest("", **given, seed=secrets.randbits(32))
    with running_server(options.url, recipe) as url, Client.connect(url) as client:
        engine = Path(client.model_parameters("speculative").get("target_engine_dir", ""))
        known = ChatTemplate.read(engine), read_tokenizer(engine)
        chat = Chat(client, *known, sampling, [{"role": "system", "content": options.system}])
        for line in filter(None, map(str.strip, _lines())):
            try:
                chat.obey(line)
                if options.compare and not line.startswith("/"):
                    chat.compare()
            except DraftproofError as error:
                if not sys.stdin.isatty():
                    raise
                _say(f"error: {error}")
    return EXIT_PASS


def _lines() -> Iterator[str]:
    """Yield the lines of the input; on a terminal after a prompt, and with a history."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - input() uses it
    _say(f"Ctrl+C stops an answer, Ctrl+D ends. {_HELP}")
    with suppress(EOFError):
        while True:
            yield input("> ")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
