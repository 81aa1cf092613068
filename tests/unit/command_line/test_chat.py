"""Tests of ``draftproof chat`` with a stand-in for the server."""

from __future__ import annotations

import io
import os
import re
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.client import Chunk, CompletionRequest, SpeculationCounts
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line import chat as command
from pipelines.errors import ServerBusyError
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.text.vocabulary import Vocabulary
from tests.conftest import REPOSITORY_ROOT

TEMPLATE = "{% for each in messages %}[{{ each.role }}]{{ each.content }}{% endfor %}"
ENGINE = REPOSITORY_ROOT / "engines/demo_pair/target"
VOCABULARY = Vocabulary.from_file(ENGINE / "tokenizer.json")


MASTER, SLAVE = os.openpty()
SAMPLING = {"temperature": (0.7, "recipe"), "top_p": (1.0, "built-in"), "top_k": (20, "checkpoint")}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return SLAVE


def has_echo() -> bool:
    return bool(termios.tcgetattr(SLAVE)[3] & termios.ECHO)


class StandIn:
    """A server that answers with the number of the request, two tokens at a time."""

    def __init__(self, fails: Any = None, **stated: str) -> None:
        self.asked: list[tuple[str, CompletionRequest]] = []
        self.fails = fails
        self.chunks = [Chunk("ab", (66, 67), mask, "", 0.0, 2) for mask in ((True, False), (False, True))]
        self.stated = {"target_engine_dir": str(ENGINE), "max_seq_len": "64"} | stated
        self.stated.setdefault("draft_length_file", "/run/r/draft_length.json")
        self.had_echo = False

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def model_parameters(self, model: str) -> dict[str, str]:
        return self.stated

    @contextmanager
    def stream(self, request: CompletionRequest, model: str) -> Iterator[Iterator[Chunk]]:
        self.asked.append((model, request))
        self.had_echo |= has_echo()
        yield self._chunks()

    def _chunks(self) -> Iterator[Chunk]:
        for chunk in self.chunks:
            yield chunk
            if self.fails is not None and len(self.asked) == 1:
                raise self.fails


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(
        server: StandIn, lines: str, *options: str, terminal: bool = False, has_template: bool = True
    ) -> tuple[int, str]:
        out = Terminal() if terminal else io.StringIO()
        texts = iter(lines.splitlines())

        def typed(prompt: str) -> str:
            line = next(texts, None)
            if line is None:
                raise EOFError
            return line

        @contextmanager
        def running(url: str, recipe: str) -> Iterator[str]:
            yield url

        def read(directory: Path) -> SimpleNamespace:
            assert directory == Path("/run/r")
            return SimpleNamespace(default_sampling=SAMPLING)

        monkeypatch.setattr(command.ServedFiles, "read", read)
        monkeypatch.setattr("builtins.input", typed)
        monkeypatch.setattr(command.sys, "stdin", Terminal() if terminal else io.StringIO(lines))
        monkeypatch.setattr(command.sys, "stdout", out)
        monkeypatch.setattr(command, "running_server", running)
        monkeypatch.setattr(command.Client, "connect", lambda url: server)
        if has_template:
            template = ChatTemplate({"default": TEMPLATE}, {}, ())
            monkeypatch.setattr(ChatTemplate, "read", lambda engine: template)
        return command.main(["--url", "grpc://stand-in:1", *options]), out.getvalue()

    return run


def prompts(server: StandIn) -> list[str]:
    return [request.prompt for _, request in server.asked]


def test_a_pipe_gets_the_answers_alone_and_the_history_is_kept(converse: Any) -> None:
    server = StandIn()
    code, out = converse(server, "one\n\ntwo\n/reset\nthree\n/reset new\nfour\n", "--system", "short")
    assert (code, out) == (0, "abab\n" * 4)
    assert prompts(server) == [
        "[system]short[user]one",
        "[system]short[user]one[assistant]abab[user]two",
        "[system]short[user]three",
        "[system]new[user]four",
    ]
    request = server.asked[0][1]
    assert (request.add_special_tokens, request.parse_special_tokens) == (False, True)
    assert 0 < request.max_tokens < 64


def test_the_target_alone_gets_the_same_request(converse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = StandIn()
    assert converse(server, "/compare\none\n/compare\n", "--temperature", "0.7")[0] == 0
    (first, asked), (second, again) = server.asked
    assert (first, second, asked) == (SPECULATIVE, TARGET_ALONE, again) and asked.seed is not None
    said = capsys.readouterr().err
    assert "there is no whole answer" in said
    times = r"the same text, in \d+\.\d\d s and alone in \d+\.\d\d s"
    assert re.search(rf"the target alone:\n{times}\n$", said)


def test_answers_are_sampled_as_the_servers_other_clients_get_them(
    converse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, temperature, source in (((), 0.7, "recipe"), (("--temperature", "0"), 0, "--temperature")):
        server = StandIn()
        converse(server, "one\n", *options)
        asked = server.asked[0][1]
        assert (asked.temperature, asked.top_k) == (temperature, 20)
        said = f"answers are sampled at temperature {temperature:g} ({source}), top_k 20 (checkpoint)\n"
        assert capsys.readouterr().err == said


def test_speed_and_acceptance_are_told_on_a_terminal(
    converse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = StandIn()
    counts = SpeculationCounts(2, 4, 3, (2, 1))
    server.chunks = [Chunk("ab", (66, 67), (True, False), "", time, 2) for time in (1.0, 3.0)]
    server.chunks.append(Chunk("", (), (), "stop", 3.0, 4, counts))
    out = converse(server, "one\n", "--compare", terminal=True)[1]
    assert out.count("\x1b[2m4 tokens · 1.0 tokens/s · 75 % of the draft tokens accepted\x1b[0m\n") == 2
    assert re.search(r"alone in \d+\.\d\d s: 1\.00 times the tokens per second\n$", capsys.readouterr().err)
    assert not server.had_echo and has_echo(), "what is typed during an answer is not mixed into it"


def test_draft_tokens_are_green_on_a_terminal_only(converse: Any) -> None:
    assert converse(StandIn(), "one", terminal=True)[1].count("\x1b[32m") == 2
    assert "\x1b" not in converse(StandIn(), "one")[1]


def test_ctrl_c_keeps_what_there_is(converse: Any) -> None:
    server = StandIn(KeyboardInterrupt())
    assert converse(server, "one\n/compare\ntwo\n", terminal=True)[0] == 0
    assert prompts(server) == ["[user]one", "[user]one[assistant]ab[user]two"]


def test_ctrl_c_ends_a_pipe(converse: Any) -> None:
    server = StandIn(KeyboardInterrupt())
    assert converse(server, "one\ntwo\n")[0] == 130
    assert prompts(server) == ["[user]one"]


def test_ctrl_c_before_the_first_token_stops_the_answer_alone(
    converse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, render = StandIn(), ChatRenderer.render

    def interrupted(self: ChatRenderer, messages: Any, **options: Any) -> str:
        if messages[-1]["content"] == "one":
            raise KeyboardInterrupt
        return render(self, messages, **options)

    monkeypatch.setattr(ChatRenderer, "render", interrupted)
    assert converse(server, "one\ntwo\n", terminal=True)[0] == 0
    assert prompts(server) == ["[user]two"]


def test_what_is_no_command_is_a_message_in_a_pipe_and_needs_help_on_a_terminal(
    converse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "/etc/fstab: explain"
    for terminal, arms in ((False, [SPECULATIVE, TARGET_ALONE]), (True, [])):
        server = StandIn()
        assert converse(server, line, "--compare", terminal=terminal)[0] == 0
        assert [arm for arm, _ in server.asked] == arms
        assert prompts(server) == [f"[user]{line}"] * len(arms)
        assert ("/reset [SYSTEM PROMPT]" in capsys.readouterr().err) is terminal


def test_a_character_of_two_chunks_is_whole_on_a_terminal(converse: Any) -> None:
    server = StandIn()
    first, second = (VOCABULARY.id_of[bytes([byte])] for byte in "é".encode())
    halves = [("", first, ""), ("é", second, "stop")]
    server.chunks = [Chunk(text, (token,), (False,), end, 0.0, 1) for text, token, end in halves]
    assert converse(server, "one", terminal=True)[1].startswith("é\n")


def test_an_error_ends_a_pipe_but_not_a_terminal(converse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for terminal, code, asked in ((False, 1, 1), (True, 0, 2)):
        server = StandIn(ServerBusyError("busy"))
        assert converse(server, "one\ntwo\n", terminal=terminal)[0] == code
        assert prompts(server) == ["[user]one", "[user]two"][:asked]
        assert "error: busy" in capsys.readouterr().err.lower()


def test_a_base_model_is_refused(converse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert converse(StandIn(), "one", has_template=False) == (1, "")
    assert "no chat template" in capsys.readouterr().err


@pytest.mark.parametrize("stated", [{"target_engine_dir": "/on/another/machine"}, {"target_engine_dir": ""}])
def test_the_engine_must_be_on_this_machine(
    stated: dict[str, str], converse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = StandIn(**stated)
    assert converse(server, "one") == (1, "") and server.asked == []
    assert "the target's engine on this machine" in capsys.readouterr().err


def test_an_unknown_max_seq_len_is_refused(converse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = StandIn(max_seq_len="")
    assert converse(server, "one") == (1, "") and server.asked == []
    assert "max_seq_len=''" in capsys.readouterr().err
