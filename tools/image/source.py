"""The checkout as the image sees it: its commit, and the files that the Dockerfile copies."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.image.dockerfile import Copy, Stage

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "pipelines" / "deploy" / "Dockerfile"


def copy_tracked(stage: Stage, folder: Path) -> None:
    """Copy what the stage copies, without files that git does not know, and with the same modes everywhere.

    Args:
        stage: What the Dockerfile says.
        folder: The place for the files, by their paths in the checkout.
    """
    copied = [step.source for step in stage.steps if isinstance(step, Copy)]
    for name in _git("ls-files", "-z", "--", *copied).rstrip("\0").split("\0"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o755 if (ROOT / name).stat().st_mode & 0o100 else 0o644)
    for each in (folder, *folder.rglob("*")):
        if each.is_dir():
            each.chmod(0o755)


def commit() -> tuple[str, int]:
    """Return the hash of the checkout's commit, with ``-dirty`` if files differ from it, and its time."""
    revision = _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*").strip()
    return revision, int(_git("log", "-1", "--format=%ct"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
