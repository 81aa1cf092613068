"""Runs programs in forks of a process that has imported what takes long."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["httpx", "openvino", "pydantic", "tests.support.forked_program"])


def run_forked(
    module: str, arguments: tuple[str, ...], environment: Mapping[str, str], folder: Path
) -> tuple[int | None, str, str]:
    """Run ``python -m MODULE`` with this environment alone; returns exit code, standard output and error."""
    shown = folder / "stdout", folder / "stderr"
    process = _FORKS.Process(target=_run, args=(module, arguments, dict(environment), shown))
    process.start()
    process.join()
    return process.exitcode, *(path.read_text(encoding="utf-8") for path in shown)


def _run(
    module: str, arguments: tuple[str, ...], environment: dict[str, str], shown: tuple[Path, Path]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(shown, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    assert "huggingface_hub" not in sys.modules, "it reads the environment once"
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")
