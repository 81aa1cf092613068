"""Tests of the comparison with other engines, on scripted workers and a stand-in for their servers."""

from __future__ import annotations

import json
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.__main__ import Measured
from benchmarks.peers.figures import IK_LLAMA_CPP, LLAMA_CPP, documents, first_token_table, table
from benchmarks.peers.llama_cpp import LlamaCpp, Settings, generation_of, gguf_files
from build.recipe import load_recipe
from pipelines.bench.figures import CellFigures, figures_of
from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm, Cell
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import CompletionRequest, Generation
from pipelines.errors import PeerError
from tests.support.tiny_engines import write_tokenizer

ALONE, SHORT, LONG = (Arm(LLAMA_CPP, length) for length in (0, 2, 4))
ARMS, OTHER = (TARGET_ALONE, ADAPTIVE, ALONE, SHORT, LONG), Arm(IK_LLAMA_CPP, 0)
CODE = PromptSet("code", tuple(CompletionRequest(prompt_ids=(index, 7)) for index in range(8)))
SETTINGS = Settings("target.gguf", "draft.gguf", 2, 3, 4, 512)
PROGRAM = """
import http.server, json, sys
given = json.loads(sys.argv[1])
if given["target"] == "broken.gguf":
    sys.exit("no room for the weights")
class Handler(http.server.BaseHTTPRequestHandler):
    def log_request(self, *given): print("a library talks", file=sys.stderr, flush=True)
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first = asked["prompt"][0]
        body = json.dumps({"tokens": [first, given["num_threads"], 99]} if first else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
address = f"http://127.0.0.1:{server.server_port}"
print(json.dumps({"address": address, "version": "1.0"}), flush=True)
import threading
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


def program(folder: Path) -> Path:
    path = folder / "server.py"
    path.write_text(PROGRAM)
    return path


def started(tmp_path: Path, settings: Settings = SETTINGS) -> LlamaCpp:
    log = tmp_path / "logs" / "server.log"
    return LlamaCpp(Path(sys.executable), settings, (99, 98), log, program(tmp_path))


def test_the_server_answers_or_says_why_it_does_not(tmp_path: Path) -> None:
    with closing(started(tmp_path)) as server:
        assert server.version == "1.0"
        answer = server.ask(CompletionRequest(prompt_ids=(5, 6)), "")
        assert answer.output_ids == (5, 3), "without its end token"
        with pytest.raises(PeerError, match=r"KeyError\('tokens'\): a library talks"):
            server.ask(CompletionRequest(prompt_ids=(0,)), "")
    assert server._process.poll() is not None
    with pytest.raises(PeerError, match="exit code 1: no room for the weights"):
        started(tmp_path, replace(SETTINGS, target="broken.gguf"))


def test_only_pairs_of_gguf_files_are_compared() -> None:
    files = gguf_files(load_recipe("qwen2-5-coder-cpu"))
    assert files["target"].endswith("1.5b-instruct-q4_k_m.gguf")
    assert files["draft"].endswith("0.5b-instruct-q4_k_m.gguf")
    with pytest.raises(PeerError, match="recipe demo is no pair of GGUF files"):
        gguf_files(load_recipe("demo"))


def test_arms_take_turns_and_one_that_breaks_is_left_out() -> None:
    log: list[tuple[Arm, int]] = []
    given: list[Arm] = []

    def ask(arm: Arm, request: CompletionRequest, model: str) -> Generation:
        given.append(arm)
        if arm == SHORT and given.count(arm) > 8:
            raise PeerError("it broke")
        if not log or log[-1] != (arm, request.max_tokens):
            log.append((arm, request.max_tokens))
        return generation_of(request.prompt_ids, 0.5)

    arms = (TARGET_ALONE, ADAPTIVE, ALONE, SHORT)
    measured = Measured({arm: partial(ask, arm) for arm in arms})
    measured.run([CODE], [1], 9, 2)
    a, b, c, d = arms
    turns = [arm for arm, max_tokens in log if max_tokens == 9]
    assert [arm for arm, max_tokens in log if max_tokens == 1] == [a, b, c, d], "before caches are filled"
    assert turns == [a, b, c, d, a, b, c, b, c, a]
    assert measured.failures == {SHORT: "it broke"}
    assert SHORT not in measured.asks
    assert measured.first_token_s == {(arm, "code"): (0.5,) * 4 for arm in arms}
    assert "| Ours | 0.50 s -> 0.50 s |" in first_token_table(measured.first_token_s, {"draftproof": "Ours"})


def cell_figures(walls: dict[Arm, float], **answers: tuple[int, ...]) -> CellFigures:
    cell = Cell(CODE, 1)
    given = [
        Measurement(
            *(cell, arm, repetition),
            (generation_of((1, 2), 1.0), generation_of(answers.get(str(arm), (3, 4)), 1.0)),
            wall_s * (1 + repetition),
        )
        for arm, wall_s in walls.items()
        for repetition in range(2)
    ]
    (figures,) = figures_of(given, tuple(walls))
    return figures


def test_ratios_are_taken_within_a_repetition_and_answers_compared_with_the_engines_own_target() -> None:
    walls = dict(zip((*ARMS, OTHER), (1.0, 0.5, 1.0, 2.0, 1.25, 0.75), strict=True))
    figures = cell_figures(walls, **{"K=4": (9, 9)})
    found = {each["arm"]: each for each in documents(figures)}
    assert [*found] == [
        *("draftproof target alone", "draftproof adaptive"),
        *("llama-cpp target alone", "llama-cpp K=2", "llama-cpp K=4"),
        "ik-llama-cpp target alone",
    ]
    assert found["llama-cpp K=2"]["ratio_to_alone"]["value"] == pytest.approx(0.5)
    assert found["llama-cpp K=2"]["ours_to_this"]["value"] == pytest.approx(4.0)
    assert [each["num_different"] for each in found.values()] == [0, 0, 0, 0, 2, 0]
    assert [each["num_draft_tokens"] for each in found.values()] == [0, None, 0, 2, 4, 0]
    titles = {"draftproof": "Ours", LLAMA_CPP: "Another", IK_LLAMA_CPP: "A third"}
    assert table([figures], titles).splitlines()[2:] == [
        "| 1 | Ours | 3 -> 6 | 0 of 4 |",
        "| 1 | Another | 3 -> 2 (K=4): **2.00 (2.00 to 2.00)** | 2 of 8 |",
        "| 1 | A third | 4: **1.50 (1.50 to 1.50)** | - |",
    ]


@pytest.mark.parametrize(
    ("is_right", "broken", "exit_code"),
    [(False, (), 1), (True, (LLAMA_CPP, IK_LLAMA_CPP), 3), (True, (IK_LLAMA_CPP,), 3), (True, (), 0)],
)
def test_the_command_prints_a_table_and_ends_with_a_line_of_json(
    is_right: bool,
    broken: tuple[str, ...],
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        return generation_of((1, 2) if is_right or model == "generate_target" else (1, 3), 0.25)

    write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "engine.json").write_text('{"num_threads": 2, "end_ids": [99]}')
    everything: dict[str, Any] = {
        "ensure_environment": lambda name: Path("/bin/false" if name in broken else sys.executable),
        "gguf_files": lambda recipe: {"target": "t.gguf", "draft": "d.gguf"},
        "running_server": lambda url, recipe: nullcontext("grpc://127.0.0.1:1"),
        "run_directory": lambda recipe: tmp_path,
        "engine_directories": lambda client: {"target": tmp_path},
        "fitting_prompts": lambda prompts, client, num_more: prompts,
        "engine_conditions": lambda directories: {},
    }
    monkeypatch.setattr(command, "PROGRAMS", dict.fromkeys(command.PROGRAMS, program(tmp_path)))
    for name, stand_in in everything.items():
        monkeypatch.setattr(command, name, stand_in)
    monkeypatch.setattr(command.Client, "server_version", lambda client: "2.70")
    monkeypatch.setattr(command.Client, "generate", lambda client, request, model: ask(request, model))
    arguments = ["--concurrency", "1,2", "--repetitions", "2", "--prompts", str(prompts_in(tmp_path))]
    assert command.main(arguments) == exit_code
    output = capsys.readouterr().out
    printed = json.loads(output.splitlines()[-1])
    others = {
        LLAMA_CPP: {f"llama-cpp {way}" for way in ("target alone", "K=2", "K=4")},
        IK_LLAMA_CPP: {"ik-llama-cpp target alone"},
    }
    assert set(printed["not_measured"]) == set().union(*(others[name] for name in broken))
    different = {each["arm"]: each["num_different"] for each in printed["arms"]}
    assert (different["draftproof adaptive"] > 0) != is_right
    assert {each["arm"] for each in printed["arms"]} >= set().union(
        *(arms for name, arms in others.items() if name not in broken)
    )
    for name, about in printed["conditions"]["peers"].items():
        assert about["version"] == ("" if name in broken else "1.0")
    assert "| Concurrent | Engine | prompts | Answers" in output


def prompts_in(folder: Path) -> Path:
    path = folder / "prompts.txt"
    path.write_text("\n".join(f"text {index}" for index in range(8)))
    return path
