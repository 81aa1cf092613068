"""The two pairs of a rollout in one rendered repository.

``build`` renders the new pair in a separate process and writes the record of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.building import package_arguments
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.errors import CanaryError
from pipelines.manifest import MANIFEST_NAME, read_manifest


def read_pair(run_directory: Path, speculative_model: str = LOOP) -> PairRecord:
    """Read the pair of a model in ``<run_directory>/model_repository``.

    Raises:
        CanaryError: The file is missing, or another version wrote it.
    """
    return PairRecord.read(run_directory / "model_repository" / speculative_model, CanaryError)


def engine_manifest(pair: PairRecord, role: str) -> dict[str, Any]:
    """Read ``manifest.json`` of a pair's ``draft`` or ``target`` engine.

    Raises:
        CanaryError: The file cannot be read.
    """
    directory = Path(getattr(pair, f"{role}_engine_dir"))
    manifest = read_manifest(directory)
    if manifest is None:
        raise CanaryError(
            "the manifest of an engine cannot be read",
            values=str(directory / MANIFEST_NAME),
            limit="an engine directory as 'draftproof engines' leaves it",
            remedy="run 'draftproof engines' for the recipe",
        )
    return manifest


@dataclass(frozen=True)
class CandidatePair:
    """The candidate beside the stable pair.

    Attributes:
        pair: Candidate.
        stable: Pair in service.
    """

    pair: PairRecord
    stable: PairRecord

    @classmethod
    def read(cls, run_directory: Path, speculative_model: str) -> CandidatePair:
        """Read a candidate that was rendered before.

        Raises:
            CanaryError: One of the pairs cannot be read.
        """
        return cls(read_pair(run_directory, speculative_model), read_pair(run_directory))

    @property
    def same_target(self) -> bool:
        """Whether both pairs have the same target engine, so that their answers must be equal."""
        return self.pair.target_fingerprint == self.stable.target_fingerprint


def render_beside(
    recipe: str, run_directory: Path, free: int, public_key: Path | None = None
) -> CandidatePair:
    """Build and measure a pair, or check its package, and render it beside the one in service.

    Args:
        recipe: Name of a recipe, path of a YAML file, or path of a package.
        run_directory: ``.run/<recipe of the pair in service>``.
        free: Bytes of memory that the server may still use; this process may have other limits.
        public_key: PEM file of the key that must have signed a package; None to accept any package.

    Raises:
        CanaryError: The build failed; the error quotes its message.
    """
    is_package = "/" in recipe and Path(recipe).is_dir()
    source = package_arguments(Path(recipe), public_key) if is_package else ["--recipe", recipe]
    command = [sys.executable, "-m", "build.repository", *source]
    command += ["--add-to", str(run_directory), "--free-bytes", str(free)]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CanaryError(
            "the candidate could not be rendered beside the pair in service",
            values=said[-1].removeprefix("error: ") if said else f"exit code {done.returncode}",
            limit=f"a package, or a recipe that can be built here; and the repository of {run_directory}",
            remedy="correct what is named; nothing was loaded",
        )
    return CandidatePair.read(run_directory, json.loads(lines[-1])["speculative_model"])


def remove(run_directory: Path, pair: PairRecord) -> None:
    """Remove an unloaded pair from the repository; files that are missing are no error."""
    folder = run_directory / "model_repository" / pair.speculative_model
    with tempfile.TemporaryDirectory(prefix=".removed-", dir=run_directory) as scratch:
        if folder.exists():
            folder.rename(Path(scratch) / folder.name)
    for socket in (pair.socket, pair.control_socket):
        (REPOSITORY_ROOT / socket).unlink(missing_ok=True)


def load_at_start(run_directory: Path, pair: PairRecord, *, wanted: bool) -> None:
    """Set whether servers of the directory load a pair when they start."""
    folder = run_directory / "model_repository" / pair.speculative_model
    replace(pair, loads_at_start=wanted).write(folder)
