"""Tests of the comparison of engines with and without speculation, on stand-ins for the engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.lossless import __main__ as command

KIND = {"kind": "plain answers", "questions": 9, "differ one at a time": 2, "control's own": 1}
VERDICT: dict[str, Any] = {
    "sentence": "2 of 9 differ",
    "faults": [],
    "doubts": [],
    "differences": [{"curl": "curl http"}],
}
SECTIONS = VERDICT, {"kinds": [KIND]}, {}, {"not_checked": ["echo"]}
GENAI = """
import json, sys
assert json.loads(sys.argv[1])[1] == "draft.gguf"
right, wrong = [[1, 2]] * 8, [[1, 2]] * 7 + [[1, 3]]
runs = {"without": [right, wrong], "without, again": [right, right], "draft": [wrong, right]}
print(json.dumps({"version": "7", "answers": runs}))
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Stand in for engines and verify; returns the command lines of verify."""
    given: list[tuple[str, ...]] = []

    def verify(arguments: list[str]) -> None:
        given.append(tuple(arguments[:4]))
        report = {"sections": [{"figures": each} for each in SECTIONS]}
        Path(arguments[-1]).write_text(json.dumps(report))

    def llama_cpp(python: object, settings: Any, *rest: object) -> SimpleNamespace:
        url = f"http://{settings.num_draft_tokens}"
        return SimpleNamespace(url=url, version="1", close=lambda: None)

    (tmp_path / "genai.py").write_text(GENAI)
    everything: dict[str, Any] = {
        "verify": verify,
        "LlamaCpp": llama_cpp,
        "ensure_environment": lambda name: Path("python"),
        "gguf_files": lambda recipe: {"target": "target.gguf", "draft": "draft.gguf"},
        "_GENAI": tmp_path / "genai.py",
    }
    for name, stand_in in everything.items():
        monkeypatch.setattr(command, name, stand_in)
    return given


def test_each_engine_gets_a_row_and_the_file_keeps_the_others(
    asked: list[tuple[str, ...]], tmp_path: Path
) -> None:
    file = tmp_path / "lossless.json"
    genai = ["--genai", sys.executable, "--genai-draft", "draft.gguf"]
    for engines in (["llama.cpp"], ["openvino genai"]):
        assert command.main(["--only", *engines, *genai, "--output", str(file)]) == 0
    assert asked == [("--against", "http://4", "--control", "http://0")]
    rows = json.loads(file.read_text())["rows"]
    assert [*rows] == ["llama.cpp", "openvino genai"]
    assert rows["llama.cpp"]["kinds"] == [KIND] and rows["llama.cpp"]["not_checked"] == ["echo"]
    assert rows["llama.cpp"]["differences"] == [{}], "a command names a folder of this machine"
    (found,) = rows["openvino genai"]["differences"]
    assert (found["asked"], found["position"], found["candidate"]) == (
        "differ one at a time",
        "token 1",
        [1, 3],
    )
    assert rows["openvino genai"]["kinds"] == [
        {
            "kind": "draft",
            "questions": 8,
            "differ one at a time": 1,
            "differ all at once": 0,
            "control's own": 1,
        }
    ]
