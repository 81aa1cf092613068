"""The command ``draftproof`` of the package: whole where ``draftproof-serve`` is installed, else a part."""

from __future__ import annotations

import importlib
import platform
import sys

from pipelines.__main__ import parsed
from pipelines.errors import DraftproofError
from pipelines.program import run_program

_PROGRAMS = {
    "verify": "pipelines.validation.openai.command",
    "upstreams": "pipelines.upstreams.__main__",
    "canary": "pipelines.canary.__main__",
    "api-key": "pipelines.front_door.access.__main__",
}
"""Programs that need no server on this machine; all but the first need the extra ``upstreams``."""


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from draftproof_serve import main as everything
    except ModuleNotFoundError:
        name, *arguments = parsed(sys.argv[1:])
        return run_program(lambda: _run(name, arguments))
    return int(everything())


def _run(name: str, arguments: list[str]) -> int:
    if name not in _PROGRAMS:
        raise _without_server(name)
    try:
        program = importlib.import_module(_PROGRAMS[name])
    except ModuleNotFoundError as error:
        raise DraftproofError(
            f"packages of 'draftproof {name}' are not installed: no module {error.name}",
            "run: pip install 'draftproof[upstreams]'",
        ) from None
    return int(program.main(arguments))


def _without_server(name: str) -> DraftproofError:
    if sys.version_info >= (3, 13):
        return DraftproofError(
            f"'draftproof {name}' needs Python 3.10 to 3.12, as Triton's package has no Python backend for "
            f"others, and this is {platform.python_version()}",
            "run: uv python install 3.12 && uv tool install --python 3.12 'draftproof[serve]'",
        )
    return DraftproofError(
        f"'draftproof {name}' is a program of the server, which is not installed",
        "run: pip install 'draftproof[serve]' (Linux on x86-64)",
    )
