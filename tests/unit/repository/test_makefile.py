"""Tests of the Makefile: parsing it changes nothing, and clean keeps sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY_ROOT, tracked_files
from tests.support.damaged_engines import AS_OWNER


def _make(*arguments: str, folder: Path, start: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    # A make that runs these tests must not pass its own flags down.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = [*start, "make", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def _targets() -> list[str]:
    text = (REPOSITORY_ROOT / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"^([a-z][a-z0-9-]*):.*## ", text, re.MULTILINE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the tracked files, without the large ones."""
    for path in tracked_files():
        if not path.endswith(".safetensors"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY_ROOT / path, tmp_path / path)
    return tmp_path


def _state(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_help_is_the_default_and_names_every_target_and_setting() -> None:
    shown = _make(folder=REPOSITORY_ROOT)
    assert shown.returncode == 0
    assert shown.stdout == _make("help", folder=REPOSITORY_ROOT).stdout
    settings = re.findall(r"^([A-Z_]+) \?=", (REPOSITORY_ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in [*_targets(), *settings]:
        assert re.search(rf"^  {name}\s", shown.stdout, re.MULTILINE), f"{name} is not in make help"


def test_all_targets_can_be_planned_without_warning_or_effect(checkout: Path) -> None:
    before = _state(checkout)
    planned = _make("-n", *_targets(), folder=checkout)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert _state(checkout) == before


def test_clean_keeps_every_source(checkout: Path) -> None:
    (checkout / ".run" / "demo").mkdir(parents=True)
    (checkout / "build" / "__pycache__").mkdir()
    before = set(_state(checkout))
    done = _make("clean", folder=checkout)
    assert done.returncode == 0, done.stderr
    assert set(_state(checkout)) == before
    assert not (checkout / ".run").exists()
    assert not (checkout / "build" / "__pycache__").exists()


def test_clean_engines_asks_first_and_spares_the_demo_pair(checkout: Path) -> None:
    compiled = checkout / "engines" / "demo" / "target-0123456789abcdef" / "engine.bin"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"weights")
    compiled.parent.chmod(0o555)  # as builds leave it
    kept = checkout / "engines" / "demo_pair" / "target" / "config.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("{}")
    refused = _make("clean-engines", folder=checkout)
    assert refused.returncode == 2
    assert "CONFIRM=1" in refused.stdout
    assert compiled.exists()
    assert _make("clean-engines", "CONFIRM=1", folder=checkout, start=AS_OWNER).returncode == 0
    assert not compiled.exists()
    assert kept.exists()


def test_without_a_usable_python_the_message_says_what_to_do(checkout: Path) -> None:
    done = _make(".venv/created.stamp", "candidates=no-such-python", folder=checkout)
    assert done.returncode != 0
    assert "need 3.10 to 3.12" in done.stdout
    assert "PYTHON=" in done.stdout
