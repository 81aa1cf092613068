"""Tests of the comparison with other engines, on scripted engines and stand-in programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.figures import ArmFigures, figures_of, table
from benchmarks.peers.measuring import Measurement, Plan, Schedule, TokenizedPrompt, num_requests
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import OURS, OURS_ADAPTIVE, Arm, Peer
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.protocol import (
    Loaded,
    LoadRequest,
    Outcome,
    RunRequest,
)
from benchmarks.peers.running_peers import running_peers
from pipelines.bench.figures import Spread
from pipelines.bench.reporting.conditions import conditions
from pipelines.bench.workers import Workers
from pipelines.client import CompletionRequest, Generation
from pipelines.errors import PeerError
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
