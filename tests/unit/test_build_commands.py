"""What the commands of build share: options, refusals, exit codes, and that what is written is whole."""

from __future__ import annotations

import errno
import importlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from build.command_line import run_command
from build.whole import whole_directory, whole_file, write_whole
from pipelines.errors import RecipeError

COMMANDS = (
    "build.deployment",
    "build.engines",
    "build.llm_api",
    "build.peers.__main__",
    "build.preflight",
    "build.quantize",
    "build.repository",
    "build.variants",
)
WITH_RUNTIME = ("build.deployment", "build.engines", "build.preflight", "build.quantize", "build.repository")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_in_one_way(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(command).main
    assert main(["--recipe", "dmo"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: there is no recipe dmo; looked for ")
    assert printed.err.endswith("did you mean demo?\n")


@pytest.mark.parametrize("command", WITH_RUNTIME)
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
        (RecipeError("a thing", values="x=1", limit="2", remedy="do"), 1, "error: a thing; x=1; 2; do\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device; room on the disk"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_user_gets_a_line_and_no_traceback(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(raises(error)) == code
    printed = capsys.readouterr()
    assert printed.out == "" and words in printed.err and printed.err.count("\n") == 1


def test_a_defect_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(raises(ZeroDivisionError()))


def test_the_result_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: {"a": 1}) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert run_command(lambda: {"a": 1}, fails=lambda result: result["a"] == 1) == 1
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert run_command(lambda: None) == 0
    assert capsys.readouterr().out == ""


def test_a_server_of_another_user_can_read_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with whole_directory(tmp_path / "engine"):
            pass
        write_whole(tmp_path / "launch.json", "{}")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"engine": 0o755, "launch.json": 0o644}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "engine"
    for content in ("old", "new"):
        with whole_directory(destination) as made:
            (made / content).write_text(content)
            assert not (destination / content).exists()
    assert names(destination) == ["new"]
    assert names(destination.parent) == ["engine"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "launch.json"
    for content in ("old", "new"):
        write_whole(path, content)
        assert path.read_text() == content
    assert names(path.parent) == ["launch.json"]


@pytest.mark.parametrize("kind", ["directory", "file"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_full_disk_leaves_what_was_there(kind: str, error: BaseException, tmp_path: Path) -> None:
    with whole_directory(tmp_path / "engine") as made:
        (made / "rank0.engine").write_text("old")
    write_whole(tmp_path / "launch.json", "old")
    with pytest.raises(type(error)):
        if kind == "directory":
            with whole_directory(tmp_path / "engine") as made:
                (made / "rank0.engine").write_text("half")
                raise error
        else:
            with whole_file(tmp_path / "launch.json") as path:
                path.write_text("half")
                raise error
    assert names(tmp_path) == ["engine", "launch.json"]
    assert (tmp_path / "engine" / "rank0.engine").read_text() == "old"
    assert (tmp_path / "launch.json").read_text() == "old"
