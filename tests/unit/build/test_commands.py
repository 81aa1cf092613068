"""Tests of the options, error messages and exit codes that the build commands share."""

from __future__ import annotations

import errno
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from build.command_line import run_command
from pipelines.errors import RecipeError

COMMANDS = ("build.engines", "build.preflight", "build.quantize", "build.repository")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_in_one_way(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(command).main
    assert main(["--recipe", "dmo"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: there is no recipe dmo: looked for ")
    assert printed.err.endswith("did you mean demo?\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_runtime_may_be_empty_as_make_gives_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(command).main
    assert main(["--recipe", "dmo", "--runtime", ""]) == 1
    with pytest.raises(SystemExit) as refused:
        main(["--recipe", "demo", "--runtime", "cuda"])
    assert refused.value.code == 2
    assert "embedded" in capsys.readouterr().err


def raises(error: BaseException) -> Any:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RecipeError("a thing is x=1", "do"), 1, "error: a thing is x=1; do\n"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "No space left on device; free disk space or grant access",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_user_gets_a_line_and_no_traceback(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(raises(error)) == code
    printed = capsys.readouterr()
    assert printed.out == "" and words in printed.err and printed.err.count("\n") == 1


class _Panic(BaseException):
    """What packages written in Rust raise."""


@pytest.mark.parametrize("error", [ZeroDivisionError("by\nzero"), _Panic("index out of bounds")])
def test_a_defect_of_ours_is_a_line_and_its_traceback_is_in_a_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_command(raises(error)) == 1
    printed, (log,) = capsys.readouterr(), list(tmp_path.iterdir())
    assert printed.out == "" and printed.err.count("\n") == 1 and str(log) in printed.err
    name = type(error).__name__
    assert f"a defect of ours: {name}: " in printed.err and "please report it" in printed.err
    assert "raise error" in log.read_text() and name in log.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert run_command(raises(error)) == 1 and "raise error" in capsys.readouterr().err, "it is nowhere else"


def test_the_result_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: {"a": 1}) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert run_command(lambda: {"a": 1}, fails=lambda result: result["a"] == 1) == 1
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert run_command(lambda: None) == 0
    assert capsys.readouterr().out == ""
