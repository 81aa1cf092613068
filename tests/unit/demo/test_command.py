"""Tests of the demonstration without a server: marks, pairs, figures, verdict, and stopping the server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench.blocks import Interval
from pipelines.client import Chunk, CompletionRequest, Generation
from pipelines.command_line.live_text import LiveText, Segment, Segmenter
from pipelines.command_line.prompts import Prompt
from pipelines.demo import __main__ as command
from pipelines.demo.summary import KindFigures, Pair, as_document, conclusion, figures_of, table, verdict_of
from pipelines.errors import EngineFailedError, PortInUseError, ServerStartError
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.chunk import SpeculationCounts

VOCABULARY = Vocabulary((b"", b"def ", b"f", b"()", "é".encode()[:1], "é".encode()[1:], b"\n", b"x"))
PROMPT = Prompt("p0", "import os\nprint(")


def chunk(ids: tuple[int, ...], marks: tuple[bool, ...], **changes: Any) -> Chunk:
    counts = SpeculationCounts(1, 2, 2, (1, 1)) if marks else None
    finish, at, so_far = changes.get("finish", ""), changes.get("at", 0.0), changes.get("so_far", 0)
    return Chunk("", ids, marks, finish, at, so_far, counts)


def test_text_is_split_by_the_origin_of_its_tokens() -> None:
    parts = Segmenter(VOCABULARY).segments(chunk((1, 2, 3, 7), (True, True, False, True)))
    assert parts == [Segment("def f", True), Segment("()", False), Segment("x", True)]


def test_a_character_of_two_tokens_counts_for_the_last() -> None:
    segments = Segmenter(VOCABULARY).segments
    assert segments(chunk((4, 5, 7), (True, False, False))) == [Segment("éx", False)]
    assert segments(chunk((0,), (True,))) == []


def test_a_character_of_two_chunks_is_one_and_the_end_of_an_answer_cuts_it() -> None:
    segments = Segmenter(VOCABULARY).segments
    assert segments(chunk((7, 4), (False, False))) == [Segment("x", False)]
    assert segments(chunk((5,), (True,))) == [Segment("é", True)]
    cut = [Segment("x", False), Segment("\ufffd", True)]
    assert segments(chunk((7, 4), (False, True), finish="length")) == cut
    assert segments(chunk((7,), (False,))) == [Segment("x", False)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "marked"), [(io.StringIO(), "«def f»()"), (Terminal(), "\x1b[32mdef f\x1b[0m()")]
)
def test_marks_are_colour_on_a_terminal_and_characters_elsewhere(out: io.StringIO, marked: str) -> None:
    live = LiveText(out, margin="  ")
    live.begin("[1/1] p0", PROMPT.text)
    live.show([Segment("def f", True), Segment("()\n", False)])
    live.end("done")
    text = out.getvalue()
    assert marked in text
    assert text.startswith("[1/1] p0\n  ")
    assert "print(" in text
    assert "import os" not in text
    assert "()\n  \n" in text
    assert "accepted draft tokens" in live.legend


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb\rc\x7f\td", "a\u241b[2Jb\u240dc\u2421\td"),
        ("a\x80\x9b2J\x9f\xa0", "a\ufffd\ufffd2J\ufffd\xa0"),
        ("\u202aa\u202e\u2066b\u2069\u202f\u206a", "\ufffda\ufffd\ufffdb\ufffd\u202f\u206a"),
    ],
)
def test_text_cannot_steer_a_terminal_and_is_itself_elsewhere(text: str, shown: str) -> None:
    for out, expected in ((Terminal(), shown), (io.StringIO(), text)):
        LiveText(out).show([Segment(text, False)])
        assert out.getvalue() == expected


class ScriptedStream:
    def __init__(self, chunks: list[Chunk], given: Generation) -> None:
        self._chunks, self._given = chunks, given

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def result(self) -> Generation:
        return self._given

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ScriptedClient:
    """A client that answers [1, 2, 3]; ``generate`` reports the first two as drafted."""

    def __init__(self, wrong: bool = False) -> None:
        self._wrong = wrong
        self.models: list[str] = []

    def stream(self, request: CompletionRequest, model: str) -> ScriptedStream:
        self.models.append(model)
        ids = (1, 2, 7) if self._wrong and model == "generate" else (1, 2, 3)
        marks = (True, True, False) if model == "generate" else ()
        counts = (1, 2, 2) if marks else (0, 0, 0)
        return ScriptedStream([chunk(ids, marks)], answer(ids, 1.0, 2.0, *counts))

    def server_version(self) -> str:
        return "2.51.0"

    def model_parameters(self, model: str) -> dict[str, str]:
        return {}

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def answer(ids: tuple[int, ...], ttft: float | None, e2e: float, *counts: int) -> Generation:
    rounds, drafted, accepted = counts or (0, 0, 0)
    return Generation("", ids, (), "length", rounds, drafted, accepted, (), ttft, e2e)


FIVE = (1, 2, 3, 4, 5)


def pair(kind: str, alone_s: float, both_s: float, *counts: int, temperature: float = 0.0) -> Pair:
    """Return the two answers of five tokens to a prompt; the first token takes a second."""
    answers = answer(FIVE, 1.0, 1.0 + alone_s), answer(FIVE, 1.0, 1.0 + both_s, *counts)
    return Pair(PROMPT, kind, temperature, *answers)


PAIRS = [
    pair("code", 4.0, 2.0, 2, 8, 3),
    pair("code", 2.0, 1.0, 2, 8, 5),
    pair("code", 9.0, 90.0, 5, 4, 0, temperature=0.8),
]
WITH_A_DIFFERENCE = [
    *PAIRS,
    Pair(PROMPT, "code", 0.0, answer(FIVE, 1.0, 5.0), answer((1, 2, 9, 4, 5), 1.0, 1.0, 2, 8, 3)),
]
NOTHING_DRAFTED = [pair("code", 4.0, 4.0, 5, 0, 0)]


def test_figures_are_those_of_the_greedy_answers_by_kind() -> None:
    others = [pair("english", 4.0, time, 4, 4, 1) for time in (4.0, 5.0)]
    code, english = figures_of([*PAIRS, *others, pair("alone", 1.0, 1.0)])
    assert (code.kind, code.answers, code.slower, english.slower) == ("code", 2, 0, 1)
    assert (code.alone, code.with_draft) == (pytest.approx(2**0.5), pytest.approx(2 * 2**0.5))
    assert code.ratio.low == pytest.approx(2.0) == code.ratio.value
    assert english.ratio.value == pytest.approx(0.8**0.5)
    assert english.ratio.low < english.ratio.value < 1 < english.ratio.high
    assert (code.acceptance_rate, english.acceptance_rate) == (0.5, 0.25)
    lines = table([code, english]).splitlines()
    assert lines[2].split() == ["code", "1.4", "2.8", "2.00", "(2.00", "to", "2.00)", "0.50"]
    assert lines[-1] == "1 of 4 answers were slower with the draft."


def figures(kind: str, value: float, low: float, high: float) -> KindFigures:
    return KindFigures(kind, 5, 0, 10.0, 10 * value, Interval(value, low, high), 0.5)


@pytest.mark.parametrize(
    ("of_kinds", "said"),
    [
        (
            [figures("dialogue", 1.05, 1.02, 1.08), figures("code", 1.43, 1.2, 1.7)],
            "1.43 times on code, 1.05 on dialogue: worth it for code, one request at a time.",
        ),
        (
            [
                figures("code", 1.4, 1.2, 1.7),
                figures("lists", 1.3, 0.9, 1.6),
                figures("english", 1.0, 0.9, 1.1),
            ],
            "1.40 times on code, 1.30 on lists, 1.00 on english: worth it for code, one request at a time; "
            "not shown for lists and english by so few answers.",
        ),
        (
            [figures("code", 1.4, 0.9, 2.0), figures("english", 0.8, 0.7, 0.9)],
            "1.40 times on code, 0.80 on english: not worth it for english; "
            "not shown for code by so few answers.",
        ),
    ],
)
def test_the_conclusion_is_a_sentence_to_decide_by(of_kinds: list[KindFigures], said: str) -> None:
    assert conclusion(of_kinds) == said


def test_the_verdict_needs_equal_answers_and_accepted_tokens() -> None:
    verdict, reason = verdict_of(PAIRS)
    assert verdict == "pass" and reason.startswith("all 3 answers (15 tokens, 8 of them")
    verdict, reason = verdict_of(WITH_A_DIFFERENCE)
    assert verdict == "fail" and "1 of 4 answers differ" in reason and "prompt p0" in reason
    document = json.loads(json.dumps(as_document(WITH_A_DIFFERENCE)))
    assert document["verdict"] == "fail"
    assert document["answers_that_differ"][0]["place"] == "token 2"


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "0 answers without a token, so nothing was compared"),
        (PAIRS[2:3], "all 1 answers (5 tokens) are the target's own, but none of 4 draft tokens was right"),
        (NOTHING_DRAFTED, "all 1 answers (5 tokens) are the target's own, but nothing was drafted"),
    ],
)
def test_a_verdict_without_accepted_tokens_says_what_is_missing(pairs: list[Pair], why: str) -> None:
    verdict, reason = verdict_of(pairs)
    assert verdict == "fail" and reason.startswith(why)


class ServerWatch:
    """A replacement for ``Server`` that counts starts and stops."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self, directory: Path, ports: Any) -> ServerWatch:
        self.events.append("start")
        return self

    def wait_ready(self) -> float:
        return 0.0

    def __enter__(self) -> ServerWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append("stop")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ServerWatch:
    """Return the program with a stand-in server; a scripted client answers for it."""
    watch = ServerWatch()
    built = {"model_repository": str(tmp_path / "model_repository")}
    monkeypatch.setattr(command, "build_recipe", lambda module, recipe, report: built)
    monkeypatch.setattr(command, "run_directory", lambda recipe: tmp_path)
    monkeypatch.setattr(command.Server, "start", watch.start)
    monkeypatch.setattr(command, "engine_directories", lambda client: {"target": tmp_path})
    monkeypatch.setattr(command.Vocabulary, "from_file", lambda path: VOCABULARY)
    monkeypatch.setattr(command.Client, "connect", lambda url: ScriptedClient())
    return watch


def test_every_kind_of_prompt_is_asked_and_the_target_comes_first_for_half_of_them(
    scene: ServerWatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = ScriptedClient()
    monkeypatch.setattr(command.Client, "connect", lambda url: client)
    assert command.main(["--recipe", "none", "--max-tokens", "3", "--num-prompts", "16"]) == 0
    out = capsys.readouterr().out
    assert out.count("«def f»()") == 20  # 16 greedy and 4 sampled answers
    kinds = ("english", "code", "lists", "dialogue")
    assert all(out.count(f"] {kind}-") == 4 + 1 for kind in kinds)
    first = client.models[2::2][:16]  # the first two are the warm-up
    assert all(first[place::4].count("generate_target") == 2 for place in range(4))
    table, verdict, closing = out.rsplit("\n\n", 2)[1], *out.splitlines()[-2:]
    assert [line.split()[0] for line in table.splitlines()[2:6]] == list(kinds)
    assert verdict.startswith("PASS: all 20 answers")
    assert closing.startswith("1.00 times on english, 1.00 on code") and closing.endswith(".")
    assert scene.events == ["start", "stop"]


def test_the_repository_of_a_running_server_is_not_rendered_again(
    scene: ServerWatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs(directory: Path) -> None:
        raise ServerStartError(f"a server of this recipe is running already: {directory}")

    monkeypatch.setattr(command.Server, "check_none_runs", runs)
    assert command.main([]) == 1
    shown = capsys.readouterr()
    assert "is running already" in shown.err and "1. Engines" not in shown.out


def test_a_difference_is_exit_code_1(
    scene: ServerWatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.Client, "connect", lambda url: ScriptedClient(wrong=True))
    assert command.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAIL: 29 of 29 answers differ")


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineFailedError("step failed"), 1), (KeyboardInterrupt(), 130), (ZeroDivisionError(), 1)],
)
def test_the_server_is_stopped_whatever_happens(
    scene: ServerWatch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    tmp_path: Path,
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(command, "converse", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert command.main([]) == code
    assert scene.events == ["start", "stop"]


def test_an_error_is_said_once_and_in_json_only_on_request(
    scene: ServerWatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken(directory: Path, ports: Any) -> None:
        raise PortInUseError("the HTTP port 8000 is in use")

    monkeypatch.setattr(command.Server, "start", taken)
    for options in ([], ["--json"]):
        assert command.main(options) == 1
        shown = capsys.readouterr()
        assert shown.err.count("error: the HTTP port 8000 is in use") == 1
        assert ("8000 is in use" in shown.out) == ("--json" in options)
