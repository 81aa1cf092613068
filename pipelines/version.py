"""Which Draftproof this is: version and commit, of a checkout or of an installed package."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from dataclasses import dataclass

from pipelines.places import CODE, STAMP


@dataclass(frozen=True)
class Sources:
    """Identifies the sources that run.

    Attributes:
        version: Of packages, images, front door and client alike; "unknown" in an image without it.
        commit: SHA of the commit; "" where there is no git.
        is_changed: Whether files differ from the commit.
    """

    version: str
    commit: str = ""
    is_changed: bool = False

    @classmethod
    def find(cls) -> Sources:
        """Return what ``tools/wheel`` wrote into the package, else what the checkout says."""
        if STAMP.exists():
            return cls(**json.loads(STAMP.read_text(encoding="utf-8")))
        project = CODE / "pyproject.toml"
        text = project.read_text(encoding="utf-8") if project.exists() else ""
        found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
        changes = _git("status", "--porcelain", "--untracked-files=no")
        return cls(found[1] if found else "unknown", _git("rev-parse", "HEAD"), bool(changes))

    def line(self) -> str:
        """Return what ``draftproof --version`` prints."""
        parts = [f"draftproof {self.version}"]
        if self.commit:
            parts.append(f"commit {self.commit[:12]}{' with changes' if self.is_changed else ''}")
        if openvino := version_of("openvino"):
            parts.append(f"OpenVINO {openvino}")
        return ", ".join(parts)


def version_of(package: str) -> str:
    """Return the version of an installed package; "" if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _git(*arguments: str) -> str:
    if not (CODE / ".git").exists():  # perhaps below the repository of somebody else
        return ""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=CODE, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
