"""Check a package and render its pair for the server that is about to start."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pipelines.building import run_build


def render_package(package: Path, public_key: Path | None, run_directory: Path | None = None) -> Path:
    """Check a package and render its pair into a run directory.

    Args:
        package: Directory of the package.
        public_key: PEM file of the key that must have signed it; None to accept any package.
        run_directory: Run directory of the server; None for ``.run/<recipe of the package>``.

    Returns:
        The run directory.

    Raises:
        EngineBuildError: The package was refused or could not be rendered; why is on standard error.
    """
    arguments = package_arguments(package, public_key)
    if run_directory is not None:
        arguments += ["--run-directory", str(run_directory.resolve())]
    done = run_build("build.repository", arguments, partial(print, flush=True))
    return Path(done["model_repository"]).parent


def package_arguments(package: Path, public_key: Path | None) -> list[str]:
    """Return the options of ``build.repository`` for a package; paths become absolute."""
    arguments = ["--package", str(package.resolve())]
    if public_key is not None:
        arguments += ["--public-key", str(public_key.resolve())]
    return arguments
