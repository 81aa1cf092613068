"""Tests of several drafts, or none: which one the recipe gets, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo import own_pair
from pipelines.demo.__main__ import Shown
from pipelines.demo.summary import Pair, as_document, verdict_of
from pipelines.demo.trials import Trial, fastest, table
from pipelines.errors import EngineLoadError
from pipelines.program import ProgramFailedError
from tests.unit.demo.test_command import WITH_A_DIFFERENCE, pair


def shown(pairs: Sequence[Pair]) -> Shown:
    return Shown(pairs, as_document(pairs), verdict_of(pairs)[1])


def pairs_of(code: float, english: float) -> list[Pair]:
    """Return answers of five tokens in two rounds with these gains; the first token takes a second."""
    gains = {"code": code, "english": english}
    return [pair(kind, 4.0, 4.0 / gain, 2, 8, 3) for kind, gain in gains.items() for _ in range(2)]


ALONE, SLOW, FAST = pairs_of(1.0, 1.0), pairs_of(1.6, 0.5), pairs_of(2.0, 1.2)


def test_the_table_says_what_a_draft_gains_and_what_its_rounds_cost() -> None:
    trials = [Trial(name, Path(), shown(each)) for name, each in (("no draft", ALONE), ("fast", FAST))]
    assert fastest(trials).name == "fast"
    lines = table(trials).splitlines()
    assert " ".join(lines[0].split()) == "code english all accepted tokens a round cost of a round"
    assert lines[3].split() == ["fast", "2.00", "1.20", "1.55", "0.38", "2.50", "1.61"]


class Told:
    """Stands for the programs that write recipes and demonstrate them."""

    def __init__(self, pairs: dict[str, Sequence[Pair] | Exception]) -> None:
        self.pairs = pairs
        self.written: list[Sequence[str]] = []

    def build(self, module: str, arguments: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
        self.written.append(arguments)
        draft = Path(arguments[1]).name if arguments[1] != "--output" else "none"
        file = Path(arguments[list(arguments).index("--output") + 1])
        if draft == "refused":
            raise ProgramFailedError("it has said why", "fix it")
        file.write_text(f"draft: {draft}")
        return {"recipe": str(file), "advice": ["What would help: a draft"]}

    def demonstrate(self, recipe: str) -> Shown:
        found = self.pairs[Path(recipe).read_text().removeprefix("draft: ")]
        if isinstance(found, Exception):
            raise found
        return shown(found)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Told:
    broken = EngineLoadError("the engine does not run", "build it again")
    programs = Told({"none": ALONE, "slow": SLOW, "fast": FAST, "broken": broken, "wrong": WITH_A_DIFFERENCE})
    monkeypatch.setattr(own_pair, "run_build", programs.build)
    monkeypatch.setattr(own_pair, "demonstrate", programs.demonstrate)
    monkeypatch.chdir(tmp_path)
    return programs


def test_the_recipe_is_that_of_the_fastest_and_a_draft_that_fails_is_left_out(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_pair.main(["big", "slow", "refused", "fast", "broken", "--json"]) == 0
    assert Path("big.yaml").read_text() == "draft: fast"
    out = capsys.readouterr().out
    assert "PASS: fast makes 1.55 times the target alone, the fastest of 3" in out
    assert "refused cannot be used and is left out\n" in out
    assert "broken cannot be used and is left out: the engine does not run" in out
    document = json.loads(out.splitlines()[-1])
    assert (document["verdict"], document["fastest"]) == ("pass", "fast")
    assert list(document["tried"]) == ["no draft", "slow", "fast"]


def test_no_draft_is_taken_if_none_is_faster_and_drafts_of_one_name_are_told_apart(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_pair.main(["big", "a/slow", "b/slow", "--json"]) == 0
    assert Path("big.yaml").read_text() == "draft: none"
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(document["tried"]) == ["no draft", "slow", "slow (2)"]


def test_without_a_draft_it_says_what_would_help(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    assert own_pair.main(["big", "--name", "alone"]) == 0
    assert Path("alone.yaml").read_text() == "draft: none"
    out = capsys.readouterr().out
    assert "What would help: a draft" in out and "PASS: no draft makes 1.00 times the target alone\n" in out
    assert len(told.written) == 1 and list(told.written[0])[-2:] == ["--name", "alone"]


def test_a_wrong_answer_fails_whichever_draft_is_the_fastest(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_pair.main(["big", "fast", "wrong"]) == 1
    assert "wrong: 1 of 4 answers differ" in capsys.readouterr().out
    assert Path("big.yaml").read_text() == "draft: fast", "a gain of 2 with wrong answers is none"


def test_a_file_that_exists_is_not_overwritten(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    Path("big.yaml").write_text("mine")
    assert own_pair.main(["big", "fast", "slow"]) == 1
    assert "big.yaml exists" in capsys.readouterr().err
    assert Path("big.yaml").read_text() == "mine" and told.written == []
