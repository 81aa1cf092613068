"""Runs the programs of ``build``, each in a process of its own: nothing here imports them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.places import CODE
from pipelines.program import ProgramFailedError, stopped_by_signals

_PATIENCE_S = 10.0  # some launchers make programs ignore SIGINT


def build_recipe(
    module: str, recipe: str, report: Callable[[str], None], options: Sequence[str] = ()
) -> dict[str, Any]:
    """Run one of ``build``'s programs on a recipe; see ``run_build``.

    Args:
        module: Such as ``build.repository``.
        recipe: Name, or path of a YAML file.
        report: Gets the lines before the last.
        options: Further arguments of the program.
    """
    is_file = recipe.endswith((".yaml", ".yml"))
    named = str(Path(recipe).resolve()) if is_file else recipe
    return run_build(module, ["--recipe", named, *options], report)


def run_build(module: str, arguments: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Run one of ``build``'s programs and return its result, the JSON object that it prints last.

    A signal that stops this program stops the other one, too, with every process that it started.

    Args:
        module: Such as ``build.repository``.
        arguments: Its arguments; paths are absolute.
        report: Gets the lines before the last, each as soon as it is printed.

    Raises:
        ProgramFailedError: The program failed; its own message is on standard error.
    """
    command = [sys.executable, "-m", module, *arguments]
    result: dict[str, Any] = {}
    with (
        stopped_by_signals(),
        subprocess.Popen(
            command, cwd=CODE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    result = json.loads(line)
                else:
                    report(line.rstrip("\n"))
        except BaseException:
            _end(process)
            raise
    if process.returncode != 0:
        raise ProgramFailedError(
            f"{' '.join(command[1:])} ended with {process.returncode}", "fix what its message above names"
        )
    return result


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and those that it started, which are its session: they clean up on Ctrl-C."""
    for number, patience_s in (
        (signal.SIGINT, _PATIENCE_S),
        (signal.SIGTERM, _PATIENCE_S),
        (signal.SIGKILL, None),
    ):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return


def package_arguments(package: Path, public_key: Path | None) -> list[str]:
    """Return the options of ``build.repository`` for a package; paths become absolute."""
    arguments = ["--package", str(package.resolve())]
    if public_key is not None:
        arguments += ["--public-key", str(public_key.resolve())]
    return arguments
