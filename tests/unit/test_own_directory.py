"""The run directory of a container's server: filled from what was rendered, kept, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.triton_world import arms_file
from pipelines.deploy import own_directory
from pipelines.deploy.__main__ import main
from pipelines.deploy.own_directory import LOCK, fill, have_alone
from pipelines.errors import ServerStartError


def files(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    """As ``make repository`` leaves it."""
    directory = tmp_path / "rendered"
    (directory / "model_repository" / "router" / "1").mkdir(parents=True)
    (directory / "model_repository" / "router" / "config.pbtxt").write_text("max_batch_size: 1")
    (directory / "model_repository" / "router" / "1" / "model.py").write_text("")
    (directory / "launch.json").write_text("{}")
    return directory


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    directory = tmp_path / "volume"
    directory.mkdir()
    return directory


def rolled_out(volume: Path) -> None:
    """What a rollout leaves there."""
    (volume / "model_repository" / "speculative_1").mkdir()
    (volume / "model_repository" / "speculative_1" / "pair.json").write_text("{}")
    arms_file(volume).write_text("weights")
    (volume / "canary.sqlite").write_text("evidence")


def test_an_empty_volume_is_filled(rendered: Path, volume: Path) -> None:
    assert fill(volume, rendered)
    found = files(volume)
    assert files(rendered).items() <= found.items()
    assert found.keys() - files(rendered).keys() == {"rendered.json"}


def test_what_a_rollout_left_stays_when_the_server_starts_again(rendered: Path, volume: Path) -> None:
    fill(volume, rendered)
    rolled_out(volume)
    before = files(volume)
    assert not fill(volume, rendered)
    assert files(volume) == before


@pytest.mark.parametrize(
    "changed", ["launch.json", "model_repository/router/config.pbtxt", "model_repository/new"]
)
def test_another_rendering_begins_anew(rendered: Path, volume: Path, changed: str) -> None:
    """The pairs of the rollout were rendered for the old one; evidence of what was decided stays."""
    fill(volume, rendered)
    rolled_out(volume)
    (rendered / changed).write_text("{ }")
    assert fill(volume, rendered)
    found = files(volume)
    assert files(rendered).items() <= found.items()
    assert found.keys() - files(rendered).keys() == {"rendered.json", "canary.sqlite"}


@pytest.mark.parametrize("where", [(Path, "rename"), (own_directory, "write_whole")])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("is_taken_back", [False, True])
def test_killed_in_the_middle_it_is_done_again(
    rendered: Path,
    volume: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[Any, str],
    number: int,
    *,
    is_taken_back: bool,
) -> None:
    """Also where the first rendering has come back meanwhile: half of the other one lies there."""
    fill(volume, rendered)
    rolled_out(volume)
    (rendered / "launch.json").write_text("another")
    act, left = getattr(*where), [number]

    def killed(*arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return act(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(*where, killed)
        with pytest.raises(KeyboardInterrupt):
            fill(volume, rendered)
    if is_taken_back:
        (rendered / "launch.json").write_text("{}")
    assert fill(volume, rendered)
    found = files(volume)
    assert files(rendered).items() <= found.items()
    assert found.keys() - files(rendered).keys() == {"rendered.json", "canary.sqlite"}


@pytest.mark.parametrize("missing", ["launch.json", "model_repository"])
def test_nothing_to_fill_from_is_an_error(rendered: Path, volume: Path, missing: str) -> None:
    (rendered / missing).rename(rendered / "elsewhere")
    with pytest.raises(ServerStartError, match=r"cannot be filled from what was rendered; .*; .*; run 'make"):
        fill(volume, rendered)
    assert files(volume) == {}


def test_a_second_server_is_refused_for_as_long_as_the_first_one_runs(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock passes to the program that the process becomes, as tritonserver's does."""
    program = (
        "import os, pathlib, sys; from pipelines.deploy.own_directory import have_alone;"
        "have_alone(pathlib.Path(sys.argv[1])); os.execv('/bin/sh', ['sh', '-c', 'echo; read line'])"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(volume)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None and first.stdin is not None
    first.stdout.readline()
    assert main(["run", str(volume)]) == 1
    assert "another server has the run directory" in capsys.readouterr().err
    first.kill()
    first.wait()
    for stream in (first.stdin, first.stdout):
        stream.close()
    have_alone(volume)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(ServerStartError, match=r"cannot be written; .*; .*; run 'make repository'"):
        have_alone(tmp_path)
