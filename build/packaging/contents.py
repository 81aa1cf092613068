"""The file ``package.json``: what a package holds, and the digest of each of its files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from build.recipe import Runtime
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines import configuration

CONTENTS = "package.json"
SIGNATURE = "package.sig"
"""Signature of ``package.json``, in base64; missing if the package is not signed."""

RECIPE = "recipe.yaml"
ENGINES = "engines"
FORMAT = 1


@dataclass(frozen=True)
class PackagedEngine:
    """An engine of a package.

    Attributes:
        name: Name of its folder in ``engines/``.
        digest: Its ``engine_digest`` (``pipelines/manifest.py``).
    """

    name: str
    digest: str


@configuration.strict
@dataclass(frozen=True)
class Contents:
    """The content of a package.

    Attributes:
        recipe: Name of the recipe, and of the run directory of its server.
        runtime: ``embedded`` or ``tensorrt_llm``.
        draft: Engine of the draft.
        target: Engine of the target.
        memory: How the engines share their GPUs; None on the embedded runtime.
        files: SHA-256 of every other file of the package by its path, with ``/`` between folders.
    """

    recipe: str
    runtime: Runtime
    draft: PackagedEngine
    target: PackagedEngine
    memory: MemoryPlan | None
    files: dict[str, str]

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @property
    def paths_outside(self) -> list[str]:
        """Return the paths that do not name a file inside the package."""
        return [path for path in self.files if not _is_inside(path)]


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and not path.startswith("/") and "/".join(parts) == path
