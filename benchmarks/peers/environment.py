"""Install packages of another engine, in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.errors import PeerError
from pipelines.manifest import sha256_file

_ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = _ROOT / ".venv-peers"
REQUIREMENTS = _ROOT / "requirements"

_INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:")
_LAST_LINES = 5  # lines of a failed installation that an error quotes


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if line.strip() and not line.startswith("WARNING")]
        last = " | ".join(telling[-_LAST_LINES:])
        raise PeerError(
            f"{' '.join(command[1:])} exited with code {done.returncode}: {last}",
            f"read {log}; it needs Linux on x86-64, and a package index with the pinned versions",
        )


def ensure_environment(
    name: str,
    environments: Path = ENVIRONMENTS,
    requirements: Path = REQUIREMENTS,
    run: Callable[[Sequence[str], Path], None] = _run,
) -> Path:
    """Create an environment, unless it exists with the same requirements.

    Args:
        name: Its name; ``peers-<name>.txt`` has its requirements.
        environments: Folder of all environments.
        requirements: Folder with the files of requirements.
        run: Run a command with its output appended to a log; raises ``PeerError``.

    Returns:
        Path of its interpreter.

    Raises:
        PeerError: The installation failed.
    """
    folder = environments / name
    interpreter = folder / "bin" / "python"
    pinned = requirements / f"peers-{name}.txt"
    identity = sha256_file(pinned)
    stamp = folder / "installed.sha256"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == identity:
        return interpreter
    environments.mkdir(parents=True, exist_ok=True)
    log = environments / f"{name}.log"
    log.write_text("", encoding="utf-8")
    run([sys.executable, "-m", "venv", "--clear", str(folder)], log)
    run([str(interpreter), *_INSTALL, "--no-deps", "--require-hashes", "-r", str(pinned)], log)
    stamp.write_text(identity, encoding="utf-8")
    return interpreter
