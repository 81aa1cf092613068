"""Tests of the protocol between driver and peer programs, and of programs that fail."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.messages import Loaded, LoadRequest, Outcome, RunRequest, read_request, write_request
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.program import process_requests, run_stepped
from pipelines.errors import PeerError

LOAD = LoadRequest("target", "draft", 4, 2, 8, 1024, 512, (999, 998), {"NUM_STREAMS": "1"})
RUN = RunRequest(((10, 11), (20,), (30,)), max_tokens=3, num_at_once=2)


def process(mode: str, tmp_path: Path, timeout_s: float = 120.0) -> PeerProcess:
    command = [sys.executable, "-m", "tests.support.stand_in_peer", mode]
    return PeerProcess(f"peer {mode}", command, tmp_path / "logs" / "peer.log", {}, timeout_s)


@pytest.mark.parametrize("message", [LOAD, RUN])
def test_a_request_survives_the_wire(message: LoadRequest | RunRequest) -> None:
    line = write_request(message)
    assert "\n" not in line
    assert read_request(line) == message


class CountingEngine:
    """An engine that ends request i after 1 + i % 3 steps, with the prompt doubled as its answer."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.most_running = 0

    def add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        self.running[index] = (1 + index % 3, prompt)
        self.most_running = max(self.most_running, len(self.running))

    def step(self) -> Iterator[tuple[int, list[int]]]:
        for index, (steps, prompt) in list(self.running.items()):
            self.running[index] = (steps - 1, prompt)
            if steps == 1:
                del self.running[index]
                yield index, [*prompt, *prompt]


@pytest.mark.parametrize("num_at_once", [1, 2, 5])
def test_the_closed_loop_keeps_so_many_under_way_and_the_order_of_answers(num_at_once: int) -> None:
    engine = CountingEngine()
    prompts = tuple((index,) for index in range(7))
    outcome = run_stepped(engine, RunRequest(prompts, 3, num_at_once))
    assert outcome.answers == tuple((index, index) for index in range(7))
    assert engine.most_running == num_at_once
    assert len(outcome.seconds) == 7
    assert 0 < max(outcome.seconds) <= outcome.wall_s


class EchoPeer:
    loaded = Loaded({}, "")

    def __init__(self, request: LoadRequest) -> None:
        pass

    def run(self, request: RunRequest) -> Outcome:
        if request.max_tokens == 3:
            raise RuntimeError("no")
        return Outcome(request.prompts, (0.0,) * len(request.prompts), 1.0)


def test_a_program_answers_every_line_also_those_that_it_cannot_carry_out() -> None:
    lines = [write_request(RUN), "not JSON", write_request(LOAD), write_request(RUN)]
    lines.append(write_request(RunRequest(((1,),), 4, 1)))
    answers = io.StringIO()
    assert process_requests(EchoPeer, lines, answers) == 0
    documents = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert documents[0] == {"error": "no models are loaded"}
    assert "JSONDecodeError" in documents[1]["error"]
    assert documents[2] == {"versions": {}, "notes": ""}
    assert documents[3] == {"error": "RuntimeError: no"}
    assert documents[4] == {"answers": [[1]], "seconds": [0.0], "wall_s": 1.0}


@pytest.mark.parametrize("mode", ["good", "noisy"])
def test_a_program_is_loaded_and_asked_whatever_its_libraries_print(mode: str, tmp_path: Path) -> None:
    with process(mode, tmp_path) as peer:
        assert peer.load(LOAD) == Loaded({"stand-in": "1.0"}, "2 threads")
        for _ in range(2):
            outcome = peer.run(RUN)
            assert outcome == Outcome(((10, 11, 999), (20, 21, 999), (30, 31, 999)), (0.5,) * 3, 2.0)
    log = (tmp_path / "logs" / "peer.log").read_text(encoding="utf-8")
    assert ("a library talks" in log) == (mode == "noisy")


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("dies", "exited with code 3: fatal: out of luck"),
        ("short", "2 answers to 3 prompts"),
    ],
)
def test_a_program_that_fails_when_asked_says_why(mode: str, reason: str, tmp_path: Path) -> None:
    with process(mode, tmp_path) as peer:
        peer.load(LOAD)
        with pytest.raises(PeerError, match=reason):
            peer.run(RUN)


def test_a_program_that_cannot_load_says_why_in_one_line(tmp_path: Path) -> None:
    with process("no-load", tmp_path) as peer, pytest.raises(PeerError) as caught:
        peer.load(LOAD)
    assert "MemoryError: no room for the weights" in str(caught.value)


def test_a_program_that_hangs_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.process._END_TIMEOUT_S", 0.2)
    began_s = time.monotonic()
    with process("hangs", tmp_path) as peer:
        peer.load(LOAD)
        peer._timeout_s = 0.5
        with pytest.raises(PeerError, match=r"no response within 0\.5 s"):
            peer.run(RUN)
    assert peer._process.poll() is not None
    assert time.monotonic() - began_s < 60


def test_an_interpreter_that_is_not_there_is_a_peer_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="could not be started"):
        PeerProcess("peer", [str(tmp_path / "python")], tmp_path / "log", {}, 1.0)
