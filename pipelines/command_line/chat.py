"""Talk to the target in a terminal: ``draftproof chat``.

It asks the running server, or starts one. Ctrl+C stops an answer and keeps what there is; at the prompt it
ends the program, as the end of the input does. In a pipe each line of the input that is no command is a
message, Ctrl+C ends the program, and the output is the answers alone. The target's engine must be on this
machine: its template and its tokenizer make the prompts. Answers are sampled as those of clients that send no
sampling parameters.

Exit codes: 0 done; 1 the server refused, failed or does not answer; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipelines.client import Chunk, Client, CompletionRequest
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.live_text import LiveText, Segment, Segmenter
from pipelines.command_line.options import whole_number
from pipelines.command_line.prompt_lengths import read_tokenizer
from pipelines.command_line.prompts import TokenSwitches
from pipelines.command_line.running_server import running_server
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError, EngineLoadError
from pipelines.program import EXIT_PASS, run_program
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.text.prompt_tokenizer import PromptTokenizer

# The template writes special tokens, BOS among them.
_AS_RENDERED: TokenSwitches = {"add_special_tokens": False, "parse_special_tokens": True}
_HELP = "/compare: the target alone answers too; /reset [SYSTEM PROMPT]: a new conversation"


@dataclass(frozen=True)
class Answer:
    """What was received of an answer.

    Attributes:
        chunks: Its chunks.
        is_whole: Whether the last one is among them.
        seconds: Time from sending the request to the last chunk, or to Ctrl+C.
    """

    chunks: list[Chunk]
    is_whole: bool
    seconds: float

    @property
    def text(self) -> str:
        """The text."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second behind the first chunk, which has the time of the prompt; None if that is all."""
        times = [chunk.received_at_s for chunk in self.chunks]
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return sum(len(chunk.output_ids) for chunk in self.chunks[1:]) / (times[-1] - times[0])

    def summary(self) -> str:
        """Say how long it took, and how much of the draft was accepted."""
        said = [f"{sum(len(chunk.output_ids) for chunk in self.chunks)} tokens"]
        if self.tokens_per_s is not None:
            said.append(f"{self.tokens_per_s:.1f} tokens/s")
        counts = next((chunk.counts for chunk in reversed(self.chunks) if chunk.counts is not None), None)
        if counts is not None and counts.total_draft_tokens:
            share = counts.total_accepted_draft_tokens / counts.total_draft_tokens
            said.append(f"{share:.0%} of the draft tokens accepted".replace("%", " %"))
        return " · ".join(said)


@dataclass
class Chat:
    """One conversation.

    Attributes:
        client: Client of the server.
        template: The target's chat template.
        tokenizer: Its tokenizer.
        max_seq_len: The most tokens of prompt and answer together.
        sampling: Sampling parameters of each answer, with a seed; ``max_tokens`` 0 stands for all that fit.
        is_compared: Whether the target alone answers each message too.
        messages: What was said, after the system prompt, which may be "".
    """

    client: Client
    template: ChatTemplate
    tokenizer: PromptTokenizer
    max_seq_len: int
    sampling: CompletionRequest
    is_compared: bool
    messages: list[dict[str, str]]
    _asked: CompletionRequest | None = None
    _answered: Answer | None = None

    def answer(self, text: str) -> None:
        """Print the answer to a message, and remember both.

        Raises:
            DraftproofError: The server or the chat template refused, or failed.
        """
        said = [*self.messages, {"role": "user", "content": text}]
        asked = self._request(said)
        answered = self._show(asked, SPECULATIVE)
        if answered.text:
            self.messages = [*said, {"role": "assistant", "content": answered.text}]
            self._asked, self._answered = asked if answered.is_whole else None, answered

    def compare(self) -> None:
        """Print what the target alone answers to the last message, and whether it is the same."""
        if self._asked is None or self._answered is None:
            return _say("there is no whole answer to compare")
        _say("the target alone:")
        alone = self._show(self._asked, TARGET_ALONE)
        if alone.is_whole:
            _say(_compared(self._answered, alone))

    def _request(self, messages: list[dict[str, str]]) -> CompletionRequest:
        with ChatRenderer(self.template) as renderer:
            prompt = renderer.render(messages[not messages[0]["content"] :], add_generation_prompt=True)
        room = self.max_seq_len - len(self.tokenizer.encode(prompt, **_AS_RENDERED))
        most = self.sampling.max_tokens or max(room, 1)  # if there is no room, the server says so
        return replace(self.sampling, prompt=prompt, max_tokens=most, **_AS_RENDERED)

    def _show(self, request: CompletionRequest, model: str) -> Answer:
        """Print an answer as it arrives."""
        live, is_whole = LiveText(sys.stdout, margin=""), False
        chunks: list[Chunk] = []
        began_s = time.monotonic()
        is_marked = sys.stdout.isatty() and model == SPECULATIVE
        segmenter = Segmenter(self.tokenizer.vocabulary) if is_marked else None
        with _until_ctrl_c(), self.client.stream(request, model) as stream:
            for chunk in stream:
                chunks.append(chunk)
                plain = [Segment(chunk.text, is_accepted=False)]
                live.show(segmenter.segments(chunk) if segmenter else plain)
            is_whole = True
        answer = Answer(chunks, is_whole, time.monotonic() - began_s)
        if sys.stdout.isatty():
            live.end(answer.summary())
        else:
            print(flush=True)
        return answer

    def obey(self, line: str) -> None:
        """Do what a line commands, or answer it."""
        command, _, rest = line.partition(" ")
        if command == "/compare":
            self.compare()
        elif command == "/reset":
            system = {"role": "system", "content": rest or self.messages[0]["content"]}
            self.messages, self._asked = [system], None
        elif command.startswith("/") and sys.stdin.isatty():  # in a pipe nobody could correct it
            _say(_HELP)
        else:
            self.answer(line)
            if self.is_compared:
                self.compare()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    text = "Talk to the target of a server; draft tokens are green on a terminal."
    parser = argparse.ArgumentParser(prog="draftproof chat", description=text, epilog=_HELP)
    parser.add_argument("--url", default="", help="grpc://host:port, with DRAFTPROOF_KEY_FILE set")
    parser.add_argument("--recipe", default="", help="recipe of the server (default: of one that runs)")
    parser.add_argument("--system", default="", help="system prompt (default: none)")
    parser.add_argument("--max-tokens", type=whole_number(0), default=0, help="0: all that fit (%(default)s)")
    parser.add_argument("--temperature", type=float, help="0 is greedy (default: the server's)")
    parser.add_argument("--compare", action="store_true", help="the target alone answers each message too")
    return run_program(partial(_converse, parser.parse_args(arguments)))


def _converse(options: argparse.Namespace) -> int:
    recipe = options.recipe or next((each.directory.name for each in Server.all_running()), "demo")
    with running_server(options.url, recipe) as url, Client.connect(url) as client:
        stated = client.model_parameters("speculative")
        known = _target(stated)
        sampling = _sampling(stated, options.temperature, options.max_tokens)
        begun = [{"role": "system", "content": options.system}]
        chat = Chat(client, *known, sampling, options.compare, begun)
        for line in filter(None, map(str.strip, _lines())):
            try:
                with _until_ctrl_c(), _without_echo():
                    chat.obey(line)
            except DraftproofError as error:
                if not sys.stdin.isatty():
                    raise
                _say(f"error: {error}")
    return EXIT_PASS


def _target(stated: Mapping[str, str]) -> tuple[ChatTemplate, PromptTokenizer, int]:
    """Return the target's template, tokenizer and ``max_seq_len`` from a server's configuration."""
    named, longest = stated.get("target_engine_dir", ""), stated.get("max_seq_len", "")
    if named and longest and (engine := Path(named)).is_dir():
        return ChatTemplate.read(engine), read_tokenizer(engine), int(longest)
    raise EngineLoadError(
        "chat needs max_seq_len, and the target's engine on this machine for its template and tokenizer: the "
        f"server states target_engine_dir={named!r}, max_seq_len={longest!r}",
        "run chat on the server's machine, or use the page of its front door",
    )


def _sampling(stated: Mapping[str, str], temperature: float | None, max_tokens: int) -> CompletionRequest:
    """Return how answers are sampled, which is also said: as the server's other clients get them by default.

    Args:
        stated: The server's configuration.
        temperature: The temperature instead of the server's; None for that.
        max_tokens: Most output tokens.
    """
    counts = dict(ServedFiles.read(Path(stated["draft_length_file"]).parent).default_sampling)
    if temperature is not None:
        counts["temperature"] = (temperature, "--temperature")
    chosen = [name for name, (_, source) in counts.items() if source != "built-in" or name == "temperature"]
    said = (f"{name} {counts[name][0]:g} ({counts[name][1]})" for name in chosen)
    _say(f"answers are sampled at {', '.join(said)}")
    values = {name: value for name, (value, _) in counts.items()}
    return CompletionRequest("", max_tokens=max_tokens, seed=secrets.randbits(32), **values)


def _compared(answered: Answer, alone: Answer) -> str:
    if alone.text != answered.text:
        return "THE TEXTS DIFFER"
    said = f"the same text, in {answered.seconds:.2f} s and alone in {alone.seconds:.2f} s"
    if answered.tokens_per_s is None or alone.tokens_per_s is None:
        return said
    return f"{said}: {answered.tokens_per_s / alone.tokens_per_s:.2f} times the tokens per second"


@contextmanager
def _without_echo() -> Iterator[None]:
    """Keep what is typed meanwhile out of an answer; the next prompt shows it."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _until_ctrl_c() -> suppress:
    """Return a block that Ctrl+C ends on a terminal; in a pipe it ends the program."""
    return suppress(*[KeyboardInterrupt] * sys.stdin.isatty())


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
