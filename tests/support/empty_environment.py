"""A new Python environment with nothing but the packages that a test names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def empty_environment(folder: Path, *packages: object, version: str = HERE) -> Path:
    """Make an environment in a folder and return its Python; skip the test where that is impossible.

    ``folder``: gets the folder ``environment``.
    """
    found = sys.executable if version == HERE else shutil.which(f"python{version}")
    chosen = {**os.environ, "PYENV_VERSION": version}  # pyenv's shims need it, others ignore it
    if found is None or run_in(folder, found, "-c", "import venv, ensurepip", env=chosen).returncode:
        pytest.skip(f"no Python {version} on this machine: not run")
    made = run_in(folder, found, "-m", "venv", folder / "environment", env=chosen)
    assert made.returncode == 0, made.stderr
    python = folder / "environment" / "bin" / "python"
    done = run_in(folder, python, "-m", "pip", "install", "--only-binary", ":all:", *packages)
    if "No matching distribution found for httpx" in done.stderr:  # the first one that the wheel needs
        pytest.skip("no package index can be reached: not run")
    assert done.returncode == 0, done.stderr
    return python


def run_in(folder: Path, *command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **{"timeout": 600, **options},
    )
