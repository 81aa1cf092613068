"""Tests of the comparison with other engines, on scripted engines and stand-in programs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.figures import ArmFigures, figures_of, first_token_table, table
from benchmarks.peers.measuring import Measurement, Plan, Schedule, TokenizedPrompt, num_requests
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import OURS, OURS_ADAPTIVE, PEERS, Arm, Peer
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.programs.openvino_genai import _Pipeline
from benchmarks.peers.protocol import (
    Loaded,
    LoadRequest,
    Outcome,
    RunRequest,
    process_requests,
    write_request,
)
from benchmarks.peers.running_peers import ensure_environment, running_peers
from pipelines.bench.figures import Spread
from pipelines.bench.reporting.conditions import conditions
from pipelines.bench.workers import Workers
from pipelines.client import CompletionRequest, Generation
from pipelines.errors import PeerError
from tests.conftest import REPOSITORY_ROOT
from tests.support.tiny_engines import write_tokenizer

OURS_ALONE = Arm(OURS, 0)
ALONE, SHORT, LONG = Arm("other", 0), Arm("other", 2), Arm("other", 4)
PROMPTS = tuple(TokenizedPrompt(f"text {index}", (index, index)) for index in range(16))
LOAD = LoadRequest("target", "draft", 4, 2, 8, 1024, 512, (999, 998), {"NUM_STREAMS": "1"})
RUN = RunRequest(((10, 11), (20,), (30,)), max_tokens=3, num_at_once=2)


class ScriptedRunner:
    """A runner that records its name when it is asked; ``SHORT`` breaks at its fourth request."""

    def __init__(self, arm: Arm, log: list[tuple[str, int]]) -> None:
        self.arm, self.log, self.num_runs = arm, log, 0

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        self.num_runs += 1
        if self.arm == SHORT and self.num_runs > 3:
            raise PeerError("it broke")
        self.log.append((str(self.arm), num_at_once if max_tokens > 1 else 0))
        return Outcome(tuple(prompt.ids for prompt in prompts), (1.0,) * len(prompts), 2.0)


def test_arms_take_turns_and_one_that_breaks_is_left_out() -> None:
    log: list[tuple[str, int]] = []
    arms = (OURS_ALONE, OURS_ADAPTIVE, ALONE, SHORT)
    plan = Plan({"code": PROMPTS}, (1, 4), 8, 2)
    schedule = Schedule(plan, {arm: ScriptedRunner(arm, log) for arm in arms}, lambda entry: None)
    schedule.run()
    a, b, c, d = map(str, arms)
    assert [name for name, num_at_once in log if num_at_once == 4] == [a, b, c, a, b, c, b, c, a]
    assert [name for name, num_at_once in log if num_at_once == 1] == [a, b, c, d, a, b, c, d, b, c, a]
    assert [name for name, num_at_once in log if not num_at_once] == [a, b, c, d], "before caches are filled"
    assert schedule.first_token_s == {(arm, "code"): (1.0,) * num_requests(1) for arm in arms}
    assert schedule.failures == {SHORT: "it broke"}
    assert [entry.repetition for entry in schedule.measurements if entry.arm == SHORT] == [0]
    assert {len(entry.answers) for entry in schedule.measurements} == {num_requests(1), num_requests(4)}


def measured(
    arm: Arm, repetition: int, wall_s: float, *answers: tuple[int, ...], kind: str = "code"
) -> Measurement:
    return Measurement(arm, kind, 1, repetition, answers or ((1, 2), (3, 4)), wall_s)


def figures_by_arm(*measurements: Measurement) -> dict[tuple[Arm, str], ArmFigures]:
    return {(entry.arm, entry.prompt_set): entry for entry in figures_of(measurements)}


def test_ratios_are_taken_within_a_repetition() -> None:
    walls = {OURS_ALONE: (1, 1, 1), OURS_ADAPTIVE: (0.5, 1, 2), ALONE: (2, 4, 1), SHORT: (1, 1, 2)}
    found = figures_by_arm(*(measured(arm, n, s) for arm, of in walls.items() for n, s in enumerate(of)))
    short = found[SHORT, "code"]
    assert short.output_tokens_per_s == Spread(4.0, 2.0, 4.0)
    assert short.ratio_to_alone == Spread(2.0, 0.5, 4.0)
    assert short.ours_to_this == Spread(1.0, 1.0, 2.0)
    assert found[OURS_ADAPTIVE, "code"].ratio_to_alone == Spread(1.0, 0.5, 2.0)


def test_answers_that_differ_are_counted_against_the_engines_own_target() -> None:
    ours = (measured(arm, 0, 1.0) for arm in (OURS_ALONE, OURS_ADAPTIVE))
    others = (measured(ALONE, 0, 1.0, (1, 9), (3, 4)), measured(SHORT, 0, 1.0, (1, 9), (3, 5)))
    found = figures_by_arm(*ours, *others)
    short, alone = found[SHORT, "code"], found[ALONE, "code"]
    assert (short.num_answers, short.num_different, alone.num_different) == (2, 1, 0)


def test_the_table_shows_each_engine_at_its_fastest_draft_length() -> None:
    entries = [measured(arm, 0, 1.0) for arm in (OURS_ALONE, OURS_ADAPTIVE, ALONE)]
    figures = figures_of([*entries, measured(SHORT, 0, 2.0), measured(LONG, 0, 1.25, (1, 2), (9, 9))])
    assert table(figures, {"draftproof": "Ours", "other": "Another engine"}).splitlines()[2:] == [
        "| 1 | Ours | 4 -> 4 | 0 of 2 |",
        "| 1 | Another engine | 4 -> 3 (K=4): **1.00** (1.00 to 1.00) | 1 of 4 |",
    ]


def test_first_tokens_are_shown_alone_and_with_the_fastest_draft() -> None:
    seconds = {(ALONE, "code"): (1.0, 2.0, 6.0), (SHORT, "code"): (4.0,), (LONG, "code"): (3.0,)}
    assert first_token_table(seconds, {"other": "Another engine"}).splitlines()[2:] == [
        "| Another engine | 2.00 s -> 3.00 s |"
    ]


class CountingPipeline(_Pipeline):
    """A pipeline that ends request i after 1 + i % 3 steps, with the prompt doubled as its answer."""

    def __init__(self) -> None:
        self._handles = {}
        self.most_running = 0

    def _add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        self._handles[index] = (1 + index % 3, prompt)
        self.most_running = max(self.most_running, len(self._handles))

    def _step(self) -> Iterator[tuple[int, list[int]]]:
        for index, (steps, prompt) in list(self._handles.items()):
            self._handles[index] = (steps - 1, prompt)
            if steps == 1:
                del self._handles[index]
                yield index, [*prompt, *prompt]


@pytest.mark.parametrize("num_at_once", [1, 2, 5])
def test_the_closed_loop_keeps_so_many_requests_running_and_the_order_of_answers(num_at_once: int) -> None:
    pipeline = CountingPipeline()
    outcome = pipeline.run(RunRequest(tuple((index,) for index in range(7)), 3, num_at_once))
    assert outcome.answers == tuple((index, index) for index in range(7))
    assert pipeline.most_running == num_at_once
    assert 0 < max(outcome.seconds) <= outcome.wall_s


class Doubling:
    """An engine that answers with the prompt doubled, but no request for three tokens."""

    loaded = Loaded({}, "")

    def __init__(self, request: LoadRequest) -> None:
        pass

    def run(self, request: RunRequest) -> Outcome:
        if request.max_tokens == 3:
            raise RuntimeError("no")
        return Outcome(tuple(2 * prompt for prompt in request.prompts), (1.0,) * len(request.prompts), 1.0)


def test_a_program_answers_every_line_also_those_that_it_cannot_carry_out() -> None:
    requests = [RUN, LOAD, RUN, RunRequest(((1,),), 4, 1)]
    lines = ["not JSON", *map(write_request, requests)]
    answers = io.StringIO()
    assert process_requests(Doubling, lines, answers) == 0
    broken, early, _, failed, answered = map(json.loads, answers.getvalue().splitlines())
    assert "JSONDecodeError" in broken["error"] and early == {"error": "no models are loaded"}
    assert failed == {"error": "RuntimeError: no"} and answered["answers"] == [[1, 1]]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("good", ""),
        ("noisy", ""),
        ("no-load", "MemoryError: no room for the weights"),
        ("dies", "exited with code 3: fatal: out of luck"),
        ("short", "2 answers to 3 prompts"),
        ("hangs", r"no response within 0\.5 s"),
    ],
)
def test_a_program_answers_or_says_why_it_does_not(
    mode: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.process._END_TIMEOUT_S", 0.2)
    command_line = [sys.executable, "-m", "tests.support.stand_in_peer", mode]
    with closing(PeerProcess(mode, command_line, tmp_path / "logs" / "peer.log", {}, 120.0)) as peer:
        if not reason:
            assert peer.load(LOAD) == Loaded({"stand-in": "1.0"}, "2 threads")
            assert peer.run(RUN).answers == ((10, 11, 999), (20, 21, 999), (30, 31, 999))
            return
        with pytest.raises(PeerError, match=reason):
            peer.load(LOAD)
            peer._timeout_s = 0.5 if mode == "hangs" else 120.0
            peer.run(RUN)
    assert peer._process.poll() is not None


def stand_in(mode: str, name: str = "other") -> Peer:
    return Peer(name, "A stand-in", "other", mode, "openvino", (2, 4))


@pytest.fixture
def models(tmp_path: Path) -> PeerModels:
    write_tokenizer(tmp_path / "target" / "openvino" / "tokenizer.json")
    content = {
        "end_ids": [999],
        "num_threads": 2,
        "compile_properties": {"NUM_STREAMS": "1"},
        "max_seq_len": 1024,
        "max_num_tokens": 512,
    }
    return PeerModels(
        tmp_path,
        {**content, "target": {"openvino": "target/openvino"}, "draft": {"openvino": "draft/openvino"}},
    )


def test_a_program_gets_the_weights_in_its_format(models: PeerModels) -> None:
    other = stand_in("")
    request = models.load_request(other, ALONE, 8)
    assert (request.target, request.draft) == (str(models.folder / "target" / "openvino"), None)
    request = models.load_request(other, LONG, 8)
    assert (request.draft, request.num_draft_tokens) == (str(models.folder / "draft" / "openvino"), 4)
    with pytest.raises(PeerError, match="no weights in the format"):
        models.load_request(replace(other, form="gguf"), ALONE, 8)


def interpreter_for(folder: Path, peer: Peer) -> Path:
    """Return a command that runs the stand-in in the peer's mode, whatever module it is to run."""
    if peer.name == "absent":
        raise PeerError("no wheel for this machine")
    script = folder / "bin" / peer.module
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.stand_in_peer {peer.module}\n')
    script.chmod(0o755)
    return script


def test_what_cannot_be_installed_or_loaded_is_named_and_the_rest_runs(
    models: PeerModels, tmp_path: Path
) -> None:
    peers = [stand_in("good", "absent"), stand_in("no-load", "broken"), stand_in("good", "whole")]
    install = partial(interpreter_for, tmp_path)
    with running_peers(peers, models, 8, 60.0, lambda line: None, install) as running:
        assert list(running.runners) == [Arm("whole", 0), Arm("whole", 2), Arm("whole", 4)]
        outcome = running.runners[Arm("whole", 2)].run(PROMPTS[3:5], 4, 2)
        assert outcome.answers == ((3, 4, 5), (4, 5, 6))  # the end token is removed
    assert set(running.failures) == {"absent", "broken target alone", "broken K=2", "broken K=4"}


def test_an_environment_is_made_once_and_anew_when_its_requirements_change(tmp_path: Path) -> None:
    (tmp_path / "peers-other.txt").write_text("a==1\n", encoding="utf-8")
    commands: list[list[str]] = []

    def run(line: Sequence[str], log: Path) -> None:
        commands.append(list(line))
        (tmp_path / "environments" / "other").mkdir(exist_ok=True)

    for _ in range(2):
        ensure_environment("other", tmp_path / "environments", tmp_path, run)
    assert commands[0][1:3] == ["-m", "venv"] and len(commands) == 2, "the second time it existed"
    assert "--require-hashes" in commands[1]
    (tmp_path / "peers-other.txt").write_text("a==2\n", encoding="utf-8")
    ensure_environment("other", tmp_path / "environments", tmp_path, run)
    assert len(commands) == 4


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_its_program_and_its_requirements(peer: Peer) -> None:
    assert (REPOSITORY_ROOT / f"{peer.module.replace('.', '/')}.py").is_file()
    text = (REPOSITORY_ROOT / "requirements" / f"peers-{peer.environment}.txt").read_text(encoding="utf-8")
    assert "--hash=sha256:" in text


@pytest.mark.parametrize(
    ("peers", "is_right", "exit_code"),
    [(("good",), False, 1), (("good", "dies"), True, 3), (("different",), True, 0)],
)
def test_the_command_prints_a_table_and_ends_with_a_line_of_json(
    peers: tuple[str, ...],
    is_right: bool,
    exit_code: int,
    models: PeerModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        ids = (1, 2) if is_right or model == "generate_target" else (1, 3)
        return Generation("", ids, (), "length", 0, 0, 0, (), None, 0.25)

    start = partial(running_peers, install=partial(interpreter_for, tmp_path))
    monkeypatch.setattr(command, "running_server", lambda url, recipe: nullcontext("grpc://127.0.0.1:1"))
    monkeypatch.setattr(command, "server_conditions", lambda *given, **more: conditions("x", [], **more))
    monkeypatch.setattr(command.Workers, "connect", lambda url, count, *, streaming: Workers([ask] * count))
    monkeypatch.setattr(command.PeerModels, "of", lambda recipe: models)
    monkeypatch.setattr(command, "PEERS", tuple(stand_in(mode, mode) for mode in peers))
    monkeypatch.setattr(command, "running_peers", start)
    arguments = ["--concurrency", "1,2", "--prompt-sets", "code,mixed", "--repetitions", "1"]
    assert command.main(arguments) == exit_code
    output = capsys.readouterr().out
    printed = json.loads(output.splitlines()[-1])
    broken = {f"dies {way}" for way in ("target alone", "K=2", "K=4")} if "dies" in peers else set()
    assert set(printed["not_measured"]) == broken
    assert printed["conditions"]["peers"][peers[0]]["versions"] == {"stand-in": "1.0"}
    different = {arm["arm"]: arm["num_different"] for arm in printed["arms"] if arm["prompt_set"] == "code"}
    assert (different[f"{peers[0]} K=2"] > 0) == (peers[0] == "different")
    assert (different["draftproof adaptive"] > 0) != is_right
    assert "| Concurrent | Engine | code | mixed | Answers" in output


def test_models_that_are_not_there_are_an_error_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nowhere.yaml").write_text("name: no-such-recipe\n", encoding="utf-8")
    assert command.main(["--recipe", str(tmp_path / "nowhere.yaml")]) == 1
    assert "python -m benchmarks.peer_models" in json.loads(capsys.readouterr().out)["error"]
