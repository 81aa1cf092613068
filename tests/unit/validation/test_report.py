"""Tests of the proof's report on scripted servers: sections, console, page, JSON, command line."""

from __future__ import annotations

import html
import html.parser
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench.reporting.section import Section, Table, Verdict, joint_verdict
from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import ServerBusyError
from pipelines.validation import __main__ as command
from pipelines.validation import own
from pipelines.validation.exact.plan import DraftLength, Limits, ProofPlan
from pipelines.validation.exact.sections import ALONE, DIFFERENCES, EQUALITY, PASSES
from pipelines.validation.own import prove_equality
from pipelines.validation.report import as_document, as_html, as_text
from pipelines.validation.size import Size
from tests.conftest import REPOSITORY_ROOT
from tests.unit.client.scripted_client import Change, ScriptedClient

PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(24))
MAX_TOKENS = 16
QUICK = Size(max_tokens=MAX_TOKENS, is_quick=True)
LIMITS = Limits(2, 5, DraftLength.of_server("adaptive"))
CONDITIONS: dict[str, Any] = {"recipe": "demo", "date": "today", "command": "make", "engines": {"a": 1}}
RIGHT: Change = lambda request, model, given: given  # noqa: E731


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.validation.exact.asking.time.sleep", lambda seconds: None)


def section(verdict: Verdict) -> Section:
    rows = (("x", "1"), ("long", "22"))
    return Section("Title", verdict, "what", Table(("a", "b"), rows), "power", {"n": 1})


@pytest.mark.parametrize(
    ("verdicts", "joint"),
    [
        (("pass", "info", "pass"), "pass"),
        (("pass", "inconclusive"), "inconclusive"),
        (("inconclusive", "fail", "pass"), "fail"),
        (("info",), "fail"),
        ((), "fail"),
    ],
)
def test_verdicts_join_so_that_nothing_bad_and_nothing_at_all_passes(
    verdicts: tuple[Verdict, ...], joint: Verdict
) -> None:
    assert joint_verdict([section(verdict) for verdict in verdicts]) == joint


def test_a_section_is_printed_in_columns_with_its_power() -> None:
    lines = as_text(section("pass")).splitlines()
    assert lines[1:] == ["Title: PASS", "what", "a      b", "--------", "x      1", "long  22", "power"]
    assert "INFO" not in as_text(section("info"))
    with pytest.raises(ValueError, match="2 cells"):
        Table(("a", "b"), (("x",),))


class _Page(html.parser.HTMLParser):
    """Parses a page into its tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_everything_escaped_and_loads_nothing() -> None:
    harmful = replace(section("fail"), summary="<script>alert(1)</script>")
    source = as_html([harmful, section("info")], CONDITIONS)
    page = _Page(source)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    assert not re.findall(r"(?:src|href|url\(|@import|https?:)", source)
    for text in ("<script>alert(1)</script>", "Title", "power", "long", "FAIL", '{"a": 1}'):
        assert text in page.text
    assert "PASS" in as_html([section("pass")], CONDITIONS)


def exact(change: Change) -> dict[str, Section]:
    client: Any = ScriptedClient(change)
    plan = replace(ProofPlan.of(PROMPTS, LIMITS, is_quick=True), mean_gap_s=0.0)
    sections = prove_equality(plan, QUICK, math.inf, "nonce", client)
    return {each.title: each for each in sections}


def test_the_sections_of_a_proof_that_passes_say_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    parts = exact(RIGHT)
    assert list(parts) == [EQUALITY, ALONE, PASSES]
    assert joint_verdict(list(parts.values())) == "pass"
    equality = parts[EQUALITY]
    figures = equality.document
    assert [(group["name"], group["prompts"]) for group in figures["groups"]] == [
        ("greedy", 24),
        ("seeded", 24),
    ]
    assert figures["tokens_compared"] == sum(group["tokens"] for group in figures["groups"])
    assert "11.73% of prompts would have been detected with 95%" in equality.power
    passes = parts[PASSES].document["passes"]
    assert figures["tokens_compared"] == sum(
        each["tokens_compared"] for each in passes if each["model"] != "generate_target"
    )
    assert {each["draft_length"] for each in passes} == {"", "0-2", "adaptive"}
    assert {each["model"] for each in passes} == {"ensemble", "generate", "generate_target"}
    table = parts[PASSES].table
    assert table is not None and len(table.rows) == len(passes) >= 12
    places = re.findall(r"^\[(\d+)/\d+(?:, .* left)?\] (?:running|reference)", capsys.readouterr().err, re.M)
    assert list(map(int, places)) == list(range(1, len(places) + 1)) and len(places) >= len(passes)
    document = json.loads(json.dumps(as_document(list(parts.values()), CONDITIONS)))
    assert document["verdict"] == "pass" and document["conditions"]["recipe"] == "demo"


def test_the_sections_of_a_proof_that_fails_show_the_differences() -> None:
    def slip(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if model == SPECULATIVE and request.num_draft_tokens != 0 and request.max_tokens == MAX_TOKENS:
            return replace(given, output_ids=(*given.output_ids[:3], 99, *given.output_ids[4:]), text="other")
        return given

    parts = exact(slip)
    assert joint_verdict(list(parts.values())) == parts[EQUALITY].verdict == "fail"
    assert parts[ALONE].verdict == "pass"
    found = parts[DIFFERENCES].document["differences"]
    num_all = parts[EQUALITY].document["answers_that_differ"]
    assert len(found) == 20 < num_all and f"The first 20 of {num_all}" in parts[DIFFERENCES].summary
    assert {(each["place"], each["actual"]) for each in found} == {("token 3", "99 in 'other'")}
    lengths = [each["parameters"].split("num_draft_tokens=")[1:] for each in found]
    assert {length[0] for length, *_ in filter(None, lengths)} == {"1", "2"}, "each says which one was used"


def fixed(request: CompletionRequest, model: str, given: Generation) -> Generation:
    """Answer as a server whose draft length is set to 2 while it runs, which no parameter of a model says."""
    counts = {"total_draft_tokens": 4, "total_accepted_draft_tokens": 2}
    is_it = model != "generate_target" and request.num_draft_tokens is None
    return replace(given, draft_length="2", **counts) if is_it else given


@pytest.mark.parametrize(("change", "length"), [(RIGHT, "adaptive"), (fixed, "the server's 2")])
def test_the_server_is_asked_what_its_own_draft_length_is(
    change: Change, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own.Client, "connect", lambda url: ScriptedClient(change))
    prompts = Prompts("made", {"text": PROMPTS})
    sections, conditions = own.verify_own(
        "grpc://127.0.0.1:1", "demo", QUICK, math.inf, prompts, "equality", []
    )
    assert (joint_verdict(sections), conditions["prompts"]["source"]) == ("pass", "made")
    (passes,) = (each.document["passes"] for each in sections if each.title == PASSES)
    assert {each["draft_length"] for each in passes} == {"", "0-2", length}
    assert f" k={length} " in html.unescape(as_html(sections, conditions))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Make the command line ask a function instead of a server."""

    def install(change: Change) -> None:
        monkeypatch.setattr(command, "running_server", lambda url, recipe: nullcontext("grpc://127.0.0.1:1"))
        monkeypatch.setattr(own.Client, "connect", lambda url: ScriptedClient(change))
        # A function has no distribution: it always gives the same answer.
        monkeypatch.setattr(own, "draw_from_own", lambda *given: None)
        monkeypatch.setattr(own, "judge", lambda draws: [section("pass")])

    return install


def wrong(request: CompletionRequest, model: str, given: Generation) -> Generation:
    return replace(given, text="?") if model == SPECULATIVE and request.max_tokens == 9 else given


def busy(request: CompletionRequest, model: str, given: Generation) -> Generation:
    if model == SPECULATIVE and request.max_tokens == 9 and request.temperature:
        raise ServerBusyError("full")
    return given


@pytest.mark.parametrize(
    ("change", "code", "verdict"), [(RIGHT, 0, "pass"), (wrong, 1, "fail"), (busy, 3, "inconclusive")]
)
def test_exit_codes_tell_pass_fail_and_inconclusive(
    change: Change,
    code: int,
    verdict: str,
    scripted: Callable[[Change], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "deep" / "verify.html"
    arguments = ["--quick", "--json", "--max-tokens", "9", "--num-prompts", "24", "--html", str(page)]
    scripted(change)
    assert command.main(arguments) == code
    printed = capsys.readouterr().out
    document = json.loads(printed.splitlines()[-1])
    assert document["verdict"] == verdict
    assert "Title" in [each["title"] for each in document["sections"]], "there is time for distributions"
    assert document["conditions"]["triton_version"] == "2.51.0"
    assert document["conditions"]["command"].endswith(" ".join(arguments))
    assert f"{verdict.upper()}; wrote the report to {page}" in printed
    assert f"<title>{verdict}" in page.read_text(encoding="utf-8")
    assert ("Answers that differ" in printed) is (verdict == "fail")


STOPPED = """
import itertools, os, signal, sys
from contextlib import nullcontext
from pipelines.validation import __main__ as command, own
from tests.unit.client.scripted_client import ScriptedClient

def stop_after_a_while(request, model, given, counter=itertools.count(1)):
    if model == "generate" and request.max_tokens == 9 and next(counter) == 100:
        os.kill(os.getpid(), signal.SIGTERM)
    return given

client = ScriptedClient(stop_after_a_while)
own.Client.connect = lambda url: client
command.running_server = lambda url, recipe: nullcontext("grpc://127.0.0.1:1")
sys.exit(command.main(["--quick", "--json", "--max-tokens", "9", "--html", sys.argv[1]]))
"""


def test_a_stopped_proof_reports_what_it_has(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    program = [sys.executable, "-c", STOPPED, str(page)]
    done = subprocess.run(program, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    equality = json.loads(done.stdout.splitlines()[-1])["sections"][0]
    assert equality["verdict"] == "inconclusive"
    assert equality["figures"]["answers_compared"] > 0
    assert "the proof was stopped" in equality["summary"]
    assert page.is_file()
    num_passes = int(equality["summary"].split(" passes were finished")[0].split()[-1])
    assert 1 < num_passes <= done.stderr.count("] running ")


def test_no_server_is_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--url", "grpc://127.0.0.1:9"]) == 3
    assert capsys.readouterr().out == ""
    assert command.main(["--url", "grpc://127.0.0.1:9", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    "arguments",
    [
        *("--num-prompts 0", "--num-prompts 1", "--num-prompts 100000", "--max-tokens 0"),
        *("--prompts absent.jsonl", "--minutes 0", "--model m"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments.split())
    assert caught.value.code == 2 and "error:" in capsys.readouterr().err
